"""What a search learns from: hindsight tasks, and feedback on failed answers."""

"""The adapter of a search: its settings, its loss, its trainings, and how they keep to a GPU's memory."""

"""What vLLM imports in its own processes; nothing else here imports vLLM when it is imported itself."""

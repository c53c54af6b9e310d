"""Parts of a vLLM engine that vLLM itself loads: unlike the rest of the room they import it at once."""

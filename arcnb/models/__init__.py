import logging

# peft imports bitsandbytes, which warns on some processors that a kernel, one of a hub, is not there.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

"""`accelerate launch`, a process that waits for others: quick to start and to end."""

from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import leave

if __name__ == "__main__":
    with nothing_collected():
        from accelerate.commands.launch import main  # all commands of accelerate would import transformers
    main()
    leave()

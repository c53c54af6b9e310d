"""A stand-in for q that speaks the driver's protocol: what it says and does is written in the program.

A program is lines of `/ says CALL => ok VALUE`, `/ says CALL => err ERROR`, `/ loading err ERROR`, and
`/ does ACTION` (when loaded) or `/ does ACTION at CALL`. Literals are their own value. Not a q: it
computes nothing.
"""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path


def act(action: str) -> None:
    if action == "flood":
        while True:
            print("x" * 1000)
    if action == "wait":
        print("read:", repr(sys.stdin.read()), flush=True)
    if action == "port":
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        if "SEEN" in os.environ:
            os.mkdir(os.environ["SEEN"])  # it may not write files
        time.sleep(60)
    if action == "never":
        time.sleep(600)
    if action == "nap":
        time.sleep(3.5)
    if action == "child":
        child = subprocess.Popen(["/bin/sleep", "600"])
        os.mkdir(f"{os.environ['SEEN']}-{child.pid}")
    if action == "memory":
        kept = bytearray(3 << 30)
        print(len(kept))
    if action == "die":
        os.kill(os.getpid(), 11)
    if action == "mark":
        print("'type\n  [0]  f[1]", flush=True)
        os._exit(1)
    if action == "fork" and os.fork() == 0:
        os.setsid()  # leaves the group that is killed at the end
        time.sleep(60)
    if action.startswith("mode "):
        os.chmod(action[5:], 0o777)
    if action == "send":
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 9))
    if action == "thread":
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()
    if action.startswith("read "):
        print(Path(action[5:]).read_text())


def main() -> None:
    script = Path(sys.argv[1]).read_text()
    mark = re.search(r'-1 "(\S+) ",\(string n\)', script)[1]
    program = Path("program.q").read_text() if 'system "l ' in script else ""
    said = dict(re.findall(r"^/ says (.*?) => (.*)$", program, re.MULTILINE))
    failing = re.search(r"^/ loading (err .*)$", program, re.MULTILINE)
    try:
        for action in re.findall(r"^/ does (?!.* at )(.*)$", program, re.MULTILINE):
            act(action)
        loaded = failing[1] if failing else "ok"
    except (OSError, MemoryError) as error:
        loaded = "err wsfull" if isinstance(error, MemoryError) else f"err {error}"
    if program:
        print(f"\n{mark} -1 {loaded}", flush=True)
    for number, text in re.findall(r'^\.arcnb\.ask\[(\d+);"(.*)"\];$', script, re.MULTILINE):
        text = text.replace('\\"', '"').replace("\\\\", "\\")
        for action in re.findall(rf"^/ does (.*) at {re.escape(text)}$", program, re.MULTILINE):
            act(action)
        literal = re.fullmatch(r"""[-\d. fbe`a-z"]*""", text)
        answer = said.get(text) or (f"ok {text}" if literal else "err type")
        print(f"\n{mark} {number} {answer}", flush=True)


main()

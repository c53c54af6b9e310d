"""A program as `python3 script.py` runs it. This text goes into the sandbox's process, with the program.

There are no descriptors behind the streams and no threads in that process, so both are played: `os.read` and
its like are answered here, and a thread runs to its end when it is started. Threads that wait for each other
run into the time limit; a pool of threads says that none can be started.
"""


def run_script(program: str, typed: bytes) -> str:
    """What the program prints when this is typed."""
    import atexit
    import builtins
    import contextlib
    import io
    import os
    import sys
    import threading
    import types

    class Stream(io.BytesIO):
        def __init__(self, number, data=b""):
            super().__init__(data)
            self.fileno = lambda: number

        def close(self):  # what is closed still keeps what was printed
            pass

    streams = {0: Stream(0, typed), 1: Stream(1)}
    texts = [io.TextIOWrapper(stream, encoding="utf-8") for stream in streams.values()]
    texts[0].mode, texts[1].mode = "r", "w"
    sys.stdin = sys.__stdin__ = texts[0]
    sys.stdout = sys.__stdout__ = texts[1]
    names = {0: 0, 1: 1, "/dev/stdin": 0, "/dev/stdout": 1}
    real = {name: getattr(os, name) for name in ("read", "write", "fstat", "_exit")}
    real_open, real_start = builtins.open, threading.Thread.start

    def opened(file, mode="r", *more, **words):
        path = os.fspath(file) if isinstance(file, os.PathLike) else file
        number = names.get(path) if isinstance(path, int | str) else None
        if number is None:
            return real_open(file, mode, *more, **words)
        return streams[number] if "b" in mode else texts[number]

    def fstat(number):
        known = real["fstat"](number)
        if number not in streams:
            return known
        return os.stat_result((*known[:6], len(streams[number].getvalue()), *known[7:10]))

    def leave(code=None):
        raise SystemExit(code)

    def start(thread):
        if getattr(thread._target, "__module__", "") == "concurrent.futures.thread":
            real_start(thread)
        with contextlib.suppress(SystemExit):
            thread.run()

    io.open = builtins.open = opened
    os.read = lambda number, n: streams[number].read(n) if number in streams else real["read"](number, n)
    os.write = lambda number, data: (
        streams[number].write(data) if number in streams else real["write"](number, data)
    )
    os.fstat, os._exit = fstat, leave
    builtins.exit = builtins.quit = leave
    with contextlib.suppress(ImportError, OSError):  # not loaded where no file may be opened
        import site

        site.setcopyright(), site.sethelper()
    threading.Thread.start, threading.Thread.is_alive = start, lambda thread: False
    threading.Thread.join = lambda thread, timeout=None: None
    sys.argv = ["/script.py"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    main.__file__ = sys.argv[0]
    atexit._clear()
    try:
        exec(compile(program, "<program>", "exec"), main.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        atexit._run_exitfuncs()
        os._exit = real["_exit"]
    for stream in (getattr(sys, "stdout", None), texts[1]):
        with contextlib.suppress(AttributeError, ValueError):  # gone, closed or detached
            stream.flush()
    return streams[1].getvalue().decode("utf-8", "replace")

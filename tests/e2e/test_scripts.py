"""Scripts whose workers import them, and others, whose ``__main__`` lasts in each worker."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
import zipapp
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.scripts import finish, run_script, start_script
from tests.helpers.shared_pools import server

# What users do with functions, classes and globals of a script.
KINDS = """
import asyncio, contextvars, functools, multiprocessing, pickle, sys, threading, weakref
from concurrent.futures import ProcessPoolExecutor

import asyncpool
from asyncpool import to_process

model, count, cache = None, 0, {}
lock, var = threading.Lock(), contextvars.ContextVar("var", default=3)
local, weak = threading.local(), weakref.WeakValueDictionary()

class Counter:
    n = 0

class Point:
    def __init__(self, x):
        self.x = x

class OwnError(Exception):
    pass

def init(x):
    global model
    model = x

def initialized():
    return model

def counted():
    global count
    count += 1
    return count

def cached():
    cache["n"] = cache.get("n", 0) + 1
    return cache["n"]

def on_class():
    Counter.n += 1
    return Counter.n

@functools.lru_cache
def load(x):
    return [x]

def loads():
    return load(1) is load(1), load.cache_info().misses

def locked():
    with lock:
        return "locked"

def variable():
    return var.get()

def thread_local():
    local.x = getattr(local, "x", 0) + 1
    return local.x

@functools.singledispatch
def single(x):
    return "object"

@single.register
def _(x: int):
    return "int"

def weakly():
    point = weak["point"] = Point(1)
    return weak["point"] is point

def unpickled(data):
    return pickle.loads(data).x

def moved(point):
    return Point(point.x + 1)

def fail():
    raise OwnError("own")

JOBS = [
    (initialized,), (counted,), (counted,), (cached,), (cached,), (on_class,), (on_class,),
    (load, 2), (loads,), (loads,), (moved, Point(3)), (fail,), (locked,), (variable,),
    (thread_local,), (thread_local,), (single, 2), (weakly,),
]

async def with_submit(submit):
    found = []
    for job in JOBS + [(unpickled, pickle.dumps(Point(7)))]:
        try:
            value = await submit(*job)
        except Exception as error:
            found.append(type(error) is OwnError or f"{type(error).__name__}: {error}")
        else:
            found.append(value.x if type(value) is Point else value)
    return found

async def with_executor(executor):
    with executor:
        return await with_submit(
            lambda *job: asyncio.wrap_future(executor.submit(*job))
        )

async def with_pool(launcher, concurrency):
    async with asyncpool.Pool(
        1, initializer=init, initargs=(5,), launcher=launcher, concurrency=concurrency
    ) as pool:
        return await with_submit(pool.submit)

async def with_anyio():
    await to_process.run_sync(init, 5)
    return await with_submit(to_process.run_sync)

def main():
    options = dict(initializer=init, initargs=(5,))
    if "standard" in sys.argv:
        context = multiprocessing.get_context("spawn")
        print(asyncio.run(with_executor(ProcessPoolExecutor(1, context, **options))))
    for launcher, concurrency in ("forkserver", 1), ("forkserver", 2), ("spawn", 1):
        print(asyncio.run(with_pool(launcher, concurrency)))
    print(asyncio.run(with_executor(asyncpool.ProcessPoolExecutor(1, **options))))
    print(asyncio.run(with_anyio()))
"""

GUARD = """
if __name__ == "__main__":
    main()
"""

ALL = [5, 1, 2, 1, 2, 1, 2, [2], (True, 2), (True, 2), 4, True]
LOCAL = ["locked", 3, 1, 2, "int", True]


def lines_of(process: subprocess.Popen[str], text: str | None = None) -> list[str]:
    out, err = finish(process, text)
    assert err == ""
    assert process.returncode == 0
    return out.splitlines()


def test_a_script_with_a_guard_is_what_it_is_for_the_standard_library(
    tmp_path: Path,
) -> None:
    process = start_script(tmp_path, KINDS + GUARD, "standard")
    found = [ast.literal_eval(line) for line in lines_of(process)]
    assert found == [[*ALL, *LOCAL, 7]] * 6


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("kinds.py", ("-m", "kinds")),
        ("package/__main__.py", ("-m", "package")),
        ("package/kinds.py", ("-m", "package.kinds")),
        ("folder/__main__.py", ("folder",)),
    ],
)
def test_a_module_or_a_folder_that_is_run(
    tmp_path: Path, name: str, command: tuple[str, ...]
) -> None:
    process = start_script(tmp_path, KINDS + GUARD, name=name, command=command)
    found = [ast.literal_eval(line) for line in lines_of(process)]
    assert found == [[*ALL, *LOCAL, 7]] * 5


def refusal(function: str, name: str, kind: str, what: str) -> str:
    return (
        f"JobNotPicklableError: fn cannot be pickled: {function}() needs the global "
        f"{name!r}, a {kind}, which cannot be pickled (cannot pickle {what!r} object): put "
        "it into a module, or give the script an `if __name__ == '__main__':` guard"
    )


REFUSED = [
    refusal("locked", "lock", "lock", "_thread.lock"),
    refusal("variable", "var", "ContextVar", "_contextvars.ContextVar"),
    *[refusal("thread_local", "local", "_local", "_thread._local")] * 2,
    "int",
    refusal("weakly", "weak", "WeakValueDictionary", "weakref.ReferenceType"),
]

STEPS = f"""
import __main__
for cell in {[KINDS, "main()"]!r}:
    exec(cell, vars(__main__))
"""


def start_archive(folder: Path) -> subprocess.Popen[str]:
    (folder / "source").mkdir()
    (folder / "source" / "__main__.py").write_text(KINDS + GUARD)
    archive = folder / "app.pyz"
    zipapp.create_archive(folder / "source", archive)
    return start_script(folder, "", command=(str(archive),))


BY_VALUE: dict[str, Callable[[Path], subprocess.Popen[str]]] = {
    "no guard": lambda folder: start_script(folder, KINDS + "\nmain()"),
    "from stdin": lambda folder: start_script(folder, "", from_stdin=True),
    "a command": lambda folder: start_script(folder, "", command=("-c", KINDS + GUARD)),
    "step by step": lambda folder: start_script(folder, STEPS),
    "an archive": start_archive,
}


@pytest.mark.parametrize("how", BY_VALUE)
def test_what_cannot_be_imported_has_one_namespace_that_lasts(
    tmp_path: Path, how: str
) -> None:
    process = BY_VALUE[how](tmp_path)
    text = KINDS + GUARD if how == "from stdin" else None
    found = [ast.literal_eval(line) for line in lines_of(process, text)]
    assert found == [[*ALL, *REFUSED, 7]] * 5


# What lies behind the guard is not in the workers.
BEHIND = """
    import asyncio, asyncpool

    OFFSET = 1

    def add(x):
        return x + OFFSET

    def init():
        global OFFSET
        OFFSET = 10

    def outer():
        def inner(x):
            return add(x)
        return inner

    if __name__ == "__main__":
        FACTOR = 3

        def scale(x):
            return add(x) * FACTOR

        class Own:
            def __init__(self, x):
                self.x = x

            def scaled(self):
                return scale(self.x)

        def make(x):
            return Own(scale(x))

        async def main():
            global FACTOR
            async with asyncpool.Pool(1, initializer=init) as pool:
                print(await pool.submit(scale, 1), await pool.submit(outer(), 1))
                print(await pool.submit(lambda x: scale(x) + OFFSET, 1))
                print(await pool.submit(Own(1).scaled))
                found = await pool.submit(make, 1)
                print(type(found) is Own, found.x)
                FACTOR = 4
                print(await pool.submit(scale, 1), [x async for x in pool.map(scale, [1])])

        asyncio.run(main())
"""


def test_what_lies_behind_the_guard_travels_by_value(tmp_path: Path) -> None:
    said = run_script(tmp_path, BEHIND).splitlines()
    assert said == ["33 11", "43", "33", "True 33", "44 [44]"]


SHARED = """
    import asyncio, asyncpool

    first = second = [1]
    words, data = [str(number) for number in range(100_000)], bytearray(3_000_000)

    class A:
        pass

    class B(A):
        pass

    A.other = B

    def old():
        return "old"

    handlers = {"it": old}
    config, connection, absent = {"x": 1}, None, 1

    def init():
        global connection
        connection = "up"

    def look():
        same = first is second and B.__base__ is A and A.other is B
        return same, len(words), len(data)

    def state():
        return config["x"], connection, handlers["it"](), handlers["it"] is old

    def read():
        return absent

    async def main():
        global old, absent
        async with asyncpool.Pool(1, initializer=init) as pool:
            print(await pool.submit(look), await pool.submit(look))
            print(await pool.submit(state))
            config["x"] = 2
            print(await pool.submit(state))
            def old():
                return "new"
            handlers["it"] = old
            print(await pool.submit(state))
            print(await pool.submit(read))
            del absent
            try:
                await pool.submit(read)
            except NameError as error:
                print(error)

    asyncio.run(main())
"""


def test_by_value_a_global_is_set_again_when_it_has_changed(tmp_path: Path) -> None:
    assert run_script(tmp_path, SHARED).splitlines() == [
        "(True, 100000, 3000000) (True, 100000, 3000000)",
        "(1, 'up', 'old', True)",
        "(2, 'up', 'old', True)",
        "(2, 'up', 'new', True)",
        "1",
        "name 'absent' is not defined",
    ]


LARGE = """
import asyncio, warnings, asyncpool

warnings.simplefilter("default")
table = bytearray(20 << 20)

def look(_=0):
    return table[0]

async def main():
    async with asyncpool.Pool(1) as pool:
        for table[0] in (0, 1, 0, 1):
            print(await pool.submit(look), await pool.submit(look))
        print(await pool.submit(look), await pool.map(look, range(2)))

asyncio.run(main())
"""


def test_a_large_global_is_warned_of_once(tmp_path: Path) -> None:
    out, err = finish(start_script(tmp_path, "", command=("-c", LARGE)))
    assert out.splitlines() == ["0 0", "1 1", "0 0", "1 1", "1 [1, 1]"]
    assert err.count("RuntimeWarning") == 1
    assert (
        "RuntimeWarning: the global 'table', a bytearray of 20.0 MiB, is pickled anew for each "
        "call that needs it, to see whether it has changed: have an initializer make it, or put "
        "it into a module, or give the script an `if __name__ == '__main__':` guard\n"
    ) in err


def test_what_comes_back_does_not_change_its_class(tmp_path: Path) -> None:
    source = """
        import asyncio, asyncpool

        class Counter:
            n = 0

        def count():
            Counter.n += 1
            return Counter()

        async def main():
            async with asyncpool.Pool(1) as pool:
                found = [await pool.submit(count) for _ in range(3)]
                print(Counter.n, {type(one) is Counter for one in found})
                print(await pool.submit(lambda: Counter.n))

        asyncio.run(main())
    """
    assert run_script(tmp_path, source).splitlines() == ["0 {True}", "3"]


def test_a_script_is_imported_only_if_workers_need_it(tmp_path: Path) -> None:
    source = """
        import asyncio, math, sys, asyncpool

        def work():
            return sys.modules["__main__"] is sys.modules["__mp_main__"], __name__

        async def main():
            async with asyncpool.Pool(1) as pool:
                print(await pool.submit(math.factorial, 5))
                print(await pool.submit(lambda: bool(__import__("__main__").__file__)))
                print(log.read_text())
                print(await pool.submit(work))
                print(await pool.submit(work))
                print(log.read_text())

        from pathlib import Path
        log = Path(__file__ + ".log")
        with log.open("a") as file:
            print(__name__, file=file, end=" ")

        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert run_script(tmp_path, source).splitlines() == [
        "120",
        "True",
        "__main__ ",
        "(True, '__mp_main__')",
        "(True, '__mp_main__')",
        "__main__ __mp_main__ ",
    ]


LAUNCHED = """
    import asyncio, os, signal, sys, threading, asyncpool, asyncpool.events
    from pathlib import Path

    log = Path(__file__ + ".log")
    with log.open("a") as file:
        print(os.getpid(), file=file)
    if sys.argv[1] == "threads":
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def init():
        pass

    def who():
        return os.getpid(), os.getppid()

    async def main():
        async with asyncpool.Pool(1, initializer=init) as pool:
            first, launcher = await pool.submit(who)
            events = pool.events()
            os.kill(first, signal.SIGKILL)
            async for event in events:
                if isinstance(event, asyncpool.events.Ready):
                    break
            second, _ = await pool.submit(who)
            names = {first: "first", second: "second", launcher: "launcher"}
            pids = [int(pid) for pid in log.read_text().split()]
            print([names.get(pid, "other") for pid in pids[1:]])

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("left", "importers", "told"),
    [
        ("none", "['launcher']", []),
        (
            "threads",
            "['other', 'first', 'second']",
            ["each worker imports the script itself"],
        ),
    ],
)
def test_the_launcher_imports_the_script_of_an_initializer_unless_it_leaves_threads(
    tmp_path: Path, left: str, importers: str, told: list[str]
) -> None:
    out, err = finish(start_script(tmp_path, LAUNCHED, left))
    said = [line for line in err.splitlines() if "SIGKILL" not in line]
    assert [line.partition(",")[0] for line in said] == told
    assert out == f"{importers}\n"


def test_the_launcher_of_later_workers_has_imported_the_script(tmp_path: Path) -> None:
    source = """
        import asyncio, os, asyncpool

        PID = os.getpid()

        def who():
            return os.getpid(), os.getppid(), PID

        async def main():
            limits = asyncpool.WorkerLimits(max_jobs=1, jitter=0)
            async with asyncpool.Pool(1, worker_limits=limits) as pool:
                first, launcher, imported = await pool.submit(who)
                print(imported == first)
                parent = launcher
                while parent == launcher:
                    _, parent, imported = await pool.submit(who)
                print(imported == parent)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert run_script(tmp_path, source) == "True\nTrue\n"


FAILING = """
    import asyncio, sys, asyncpool
    from asyncpool import ProcessPoolExecutor

    def work():
        return 1

    async def start():
        async with asyncpool.Pool(1) as pool:
            pass

    if __name__ != "__main__":
        {statement}

    async def main():
        async with asyncpool.Pool(1) as pool:
            for _ in range(2):
                try:
                    await pool.submit(work)
                except ImportError as error:
                    print(str(error).replace(__file__, "SCRIPT"))
            print(await pool.submit(int, "3"))

    if __name__ == "__main__":
        asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("sys.exit(3)", "SystemExit: 3"),
        ("input()", "EOFError: EOF when reading a line"),
        (
            "asyncio.run(start())",
            (
                "RuntimeError: a pool is started while a worker imports the script SCRIPT: "
                "put what starts it under `if __name__ == '__main__':`"
            ),
        ),
        (
            "ProcessPoolExecutor(1).submit(int).result()",
            (
                "PoolClosedError: pool-1 could not be started: a pool is started while a worker "
                "imports the script SCRIPT: put what starts it under `if __name__ == '__main__':`"
            ),
        ),
    ],
)
def test_a_script_that_cannot_be_imported(
    tmp_path: Path, statement: str, why: str
) -> None:
    expected = (
        f"importing the script SCRIPT in a worker failed: {why}; put what starts things "
        "under `if __name__ == '__main__':`"
    )
    # An executor's thread that cannot start its pool says so in the log.
    out, _ = finish(start_script(tmp_path, FAILING.format(statement=statement)))
    assert out.splitlines() == [expected, expected, "3"]


def test_a_job_that_is_cancelled_while_it_imports_ends_when_that_is_done(
    tmp_path: Path,
) -> None:
    source = """
        import asyncio, os, signal, asyncpool
        from pathlib import Path

        fifo, begun = Path(__file__ + ".fifo"), Path(__file__ + ".begun")
        half = 1
        if __name__ == "__main__":
            os.mkfifo(fifo)
        else:
            with begun.open("a") as file:
                file.write("once ")
            heard, bell = os.pipe()
            os.set_blocking(bell, False)
            before = signal.set_wakeup_fd(bell)
            fifo.write_text(str(os.getpid()))
            os.read(heard, 1)  # until the signal comes that interrupts the job
            signal.set_wakeup_fd(before)
        whole = 2

        def work():
            return os.getpid(), half, whole

        async def main():
            async with asyncpool.Pool(1) as pool:
                job = pool.submit(work)
                pid = await asyncio.to_thread(fifo.read_text)
                job.cancel()
                await asyncio.wait([job])
                found, *values = await pool.submit(work)
                print(found == int(pid), values, begun.read_text())

        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert run_script(tmp_path, source) == "True [1, 2] once \n"


def test_a_name_that_the_import_does_not_define_is_missed(tmp_path: Path) -> None:
    source = """
        import asyncio, asyncpool
        from pathlib import Path

        seen = Path(__file__ + ".seen")
        if not seen.exists():
            seen.touch()
            def work():
                return 1

        async def main():
            async with asyncpool.Pool(1) as pool:
                try:
                    print(await pool.submit(work))
                except AttributeError as error:
                    print(str(error).replace(__file__, "SCRIPT"))

        if __name__ == "__main__":
            asyncio.run(main())
    """
    # From 3.15 on, and in late versions of 3.14, pickle passes on what the module says.
    told = "the script SCRIPT, imported in a worker, has no 'work'\n"
    pickles = "Can't get attribute 'work' on <module '__mp_main__' from 'SCRIPT'>\n"
    said = run_script(tmp_path, source)
    assert said == told or (said == pickles and sys.version_info < (3, 15))


def test_a_context_variable_of_a_script_goes_with_its_jobs(tmp_path: Path) -> None:
    source = """
        import asyncio, contextvars, asyncpool

        one = contextvars.ContextVar("one", default=0)
        two = contextvars.ContextVar("two", default=0)

        def read():
            return one.get(), two.get()

        async def main():
            async with asyncpool.Pool(1, propagate=[one, "__main__:two"]) as pool:
                one.set(7)
                two.set(8)
                print(await pool.submit(read))

        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert run_script(tmp_path, source) == "(7, 8)\n"


def test_a_command_that_runs_a_service_is_never_imported(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text(
        "import asyncio, asyncpool\n"
        "def work(): return 1\n"
        "async def serve():\n"
        "    async with asyncpool.Pool(1) as pool:\n"
        "        return await pool.submit(work)\n"
    )
    source = """
        import sys
        if __name__ != "__main__":
            raise RuntimeError("not me")
        import asyncio, service
        if __name__ == "__main__":
            print(asyncio.run(service.serve()))
    """
    assert run_script(tmp_path, source) == "1\n"


def test_an_interactive_script_travels_by_value(tmp_path: Path) -> None:
    source = "x = 1\nif __name__ == '__main__': pass\n"
    lines = """
        import asyncio, asyncpool
        def work(): return x, __name__

        async def main():
            async with asyncpool.Pool(1) as pool: return await pool.submit(work)

        print(asyncio.run(main()))
        x = 2
        print(asyncio.run(main()))
    """
    process = start_script(
        tmp_path, source, command=("-i", "script.py"), keep_stdin=True
    )
    out, _ = finish(process, textwrap.dedent(lines))
    assert out.splitlines() == ["(1, '__main__')", "(2, '__main__')"]


def test_workers_have_a_stderr_though_the_program_has_none(tmp_path: Path) -> None:
    program = """
        import asyncio, os, sys
        from asyncpool import Pool

        def stderr_is_there():
            return sys.stderr is not None

        async def main():
            os.close(2)
            # Its number is that of stderr now, and the launcher does not get it.
            assert os.open(os.devnull, os.O_RDONLY) == 2
            async with Pool(1) as pool:
                print(await pool.submit(stderr_is_there))

        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert run_script(tmp_path, program) == "True\n"


def test_a_sandboxed_pool_is_told_of_a_script_that_fails_where_it_is_imported(
    tmp_path: Path,
) -> None:
    source = """
        import asyncio, asyncpool

        if __name__ != "__main__":
            raise RuntimeError("not here")

        def work():
            return 1

        async def main():
            async with asyncpool.Pool(1, sandbox=asyncpool.Sandbox.parser()) as pool:
                try:
                    await pool.submit(work)
                except ImportError as error:
                    print("RuntimeError: not here" in str(error))

        if __name__ == "__main__":
            asyncio.run(main())
    """
    assert run_script(tmp_path, source) == "True\n"


RELOADS = """
import asyncio, importlib, os, pathlib, sys, asyncpool
file = pathlib.Path("changing.py")
file.write_text("def helper(): return 1\\ndef job(): return helper()\\n")
import changing

async def main():
    async with asyncpool.Pool(1, **eval(sys.argv[1])) as pool:
        assert await pool.submit(changing.job) == 1
        file.write_text("def helper(): return 200\\ndef job(): return helper()\\n")
        before = changing.job
        importlib.reload(changing)
        await show(pool)
        assert await pool.submit(before) == 1  # the old one, as before
        await pool.roll()
        await show(pool)
        before.__code__ = changing.job.__code__  # as autoreload does
        changing.job.__code__ = (lambda: 3).__code__
        await show(pool)

async def show(pool):
    try:
        print(await pool.submit(changing.job))
    except asyncpool.errors.JobNotPicklableError as error:
        print(error)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("options", "after"),
    [({}, "200"), ({"preload": ["changing"]}, "")],
)
def test_a_reloaded_module_is_refused_until_workers_have_imported_it_anew(
    tmp_path: Path, options: dict[str, object], after: str
) -> None:
    refused = "changing.job is not what workers have imported by that name: changing "
    out = run_script(tmp_path, RELOADS, repr(options)).splitlines()
    found = ["refused" if line.startswith(refused) else line for line in out]
    assert found == ["refused", after or "refused", "refused"]


WAYS = """
import asyncio, functools, importlib, pathlib, asyncpool
file = pathlib.Path("changing.py")
SOURCE = "def job(): return {0}\\nclass Shop:\\n    def job(self): return {0}\\n"
file.write_text(SOURCE.format(1))
pathlib.Path("using.py").write_text("from changing import job\\ndef use(): return job()\\n")
import changing, using

def call():
    return changing.job()

def apply(function):
    return function()

async def main():
    async with asyncpool.Pool(1) as pool:
        ways = {
            "by value": lambda: pool.submit(call),
            "lambda": lambda: pool.submit(lambda: changing.job()),
            "partial": lambda: pool.submit(functools.partial(changing.job)),
            "method": lambda: pool.submit(changing.Shop().job),
            "argument": lambda: pool.submit(apply, changing.job),
            "map": lambda: pool.map(apply, [changing.job]),
            "user": lambda: pool.submit(using.use),
            "broadcast": lambda: pool.broadcast(changing.job),
            "large": lambda: pool.submit(len, [changing.job, bytes(1 << 20)]),
        }
        assert await pool.submit(call) == 1
        file.write_text(SOURCE.format(200))
        importlib.reload(changing)
        for way, call_it in ways.items():
            try:
                print(way, await call_it())
            except asyncpool.errors.JobNotPicklableError as error:
                print(way, str(error).partition(": ")[0].partition(" ")[2])
        print(await pool.submit(abs, -3))
        await pool.roll()
        print(await pool.submit(call), await pool.submit(using.use))

asyncio.run(main())
"""


def test_whatever_needs_a_reloaded_module_is_refused(tmp_path: Path) -> None:
    *ways, other, after = run_script(tmp_path, WAYS).splitlines()
    names = "by value", "lambda", "partial", "method", "argument", "map", "broadcast"
    expected = dict.fromkeys((*names, "large"), "needs changing")
    expected["user"] = "needs using"
    found = {way: text for way in expected for text in ways if text.startswith(way)}
    assert found == {way: f"{way} {text}" for way, text in expected.items()}
    assert (other, after) == ("3", "200 200")


def test_a_module_beside_the_script_is_found(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("def seven():\n    return 7\n")
    source = """
        import asyncio, sys
        import asyncpool, neighbour

        async def main(launcher):
            async with asyncpool.Pool(1, launcher=launcher) as pool:
                print(await pool.submit(neighbour.seven))

        asyncio.run(main(sys.argv[1]))
    """
    for launcher in ("forkserver", "spawn"):
        assert run_script(tmp_path, source, launcher) == "7\n"


def test_a_module_that_shadows_the_standard_library_does_no_harm(
    tmp_path: Path,
) -> None:
    for name in ("socket", "struct", "signal", "token"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not me')\n")
    source = """
        import sys
        del sys.path[0]
        import asyncio, math
        import asyncpool

        async def main():
            async with asyncpool.Pool(1) as pool:
                print(await pool.submit(math.factorial, 5))

        asyncio.run(main())
    """
    assert run_script(tmp_path, source) == "120\n"


SPEAKS = """
    import asyncio, logging, sys
    import asyncpool

    configured, output = sys.argv[1:]
    if configured == "yes":
        logging.basicConfig(level=logging.INFO, stream=sys.stdout)

    def speak():
        print("hello")
        print("oh", file=sys.stderr)

    async def main():
        async with asyncpool.Pool(1, worker_output=output) as pool:
            await pool.submit(speak)

    asyncio.run(main())
    with asyncpool.ProcessPoolExecutor(1, worker_output=output) as executor:
        executor.submit(speak).result()
"""


@pytest.mark.parametrize("configured", ["yes", "no"])
@pytest.mark.parametrize("output", ["log", "inherit"])
def test_what_jobs_print_is_not_lost(
    tmp_path: Path, configured: str, output: str
) -> None:
    out, err = finish(start_script(tmp_path, SPEAKS, configured, output))
    lines = out.splitlines()
    of_workers = [line for line in lines if ":asyncpool.worker:" in line]
    if output == "inherit" or configured == "no":
        assert of_workers == []
        assert (lines.count("hello"), err) == (2, "oh\noh\n")
    else:
        levels = sorted(line.partition(":")[0] for line in of_workers)
        assert levels == ["INFO", "INFO", "WARNING", "WARNING"]
        ends = sorted(line.rpartition(": ")[2] for line in of_workers)
        assert (ends, err) == (["hello", "hello", "oh", "oh"], "")
    assert any("is ready" in line for line in lines) is (configured == "yes")


ABROAD = """
import asyncio
import sys

import asyncpool

FACTOR = 3


class Point:
    def __init__(self, x):
        self.x = x


def scaled(x):
    return x * FACTOR


def moved(point, by=b""):
    return Point(point.x + len(by))


async def use(pool):
    print(await pool.submit(scaled, 2))
    print([number async for number in pool.map(scaled, range(3))])
    print((await pool.submit(moved, Point(1), by=b"12")).x)
    large = bytes(3_000_000)
    print((await pool.submit(moved, Point(1), by=large)).x)
    print(list((await pool.broadcast(scaled, 5)).values()))


async def main():
    async with asyncpool.Pool(1) as here:
        await use(here)
        async with asyncpool.connect(f"unix:{sys.argv[1]}") as there:
            await use(there)
            await use(here)


if __name__ == "__main__":
    asyncio.run(main())
"""

SAID = ["6", "[0, 3, 6]", "3", "3000001", "[15]"]


def test_a_program_with_a_pool_of_its_own_uses_another_one_too(tmp_path: Path) -> None:
    path = tmp_path / "pool"
    with server(path):
        said = run_script(tmp_path, ABROAD, str(path))
    assert said.splitlines() == 3 * SAID


def test_a_tracer_sees_code_of_files_or_of_no_file(tmp_path: Path) -> None:
    """A report of coverage ends at a file that is not there, if its name is one of a file."""
    source = """
        import asyncio, os, sys
        import asyncpool

        seen = set()
        sys.settrace(lambda frame, *_: seen.add(frame.f_code.co_filename))

        async def main():
            async with asyncpool.Pool(1) as pool:
                await pool.submit(abs, -1)

        if __name__ == "__main__":
            asyncio.run(main())
            sys.settrace(None)
            print([it for it in seen if not it.startswith("<") and not os.path.exists(it)])
        """
    assert run_script(tmp_path, source) == "[]\n"

"""Strangers' programs, chat templates first, in a child process: its limits and its safety."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from rows import few

from weft.core.errors import ModelError, UsageError, WeftError
from weft.host.confined import ChildError, Confined, Limits, Stopped
from weft.models.text.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]
LIMITS = Limits(20, 256 << 20, 1 << 20)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux limits and /proc")


def render(source: str) -> str:
    return ChatTemplate(source).render(MESSAGES, True, {}, {})


def script(text: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(command, capture_output=True, timeout=240, **options)  # type: ignore


# -- time and memory ------------------------------------------------------------------------------

SLOW = [
    "{{ lipsum(n=10**9) }}",
    "{{ range(99999) | list | slice(10**9) | list }}",
    "{{ range(10**15) | sum }}{{ messages | batch(10**11, 'x') | list | length }}",
    "{% set x = range(99999) | list %}{{ x | map('lower') | map('center', 99999) | sort }}",
    "{{ [0.1] | map('round', 10**9) | list }}{{ 1 | round(10**9, 'ceil') }}",
    "{% set x = range(30000) | map('string') | list %}{{ x | map('in', x) | unique | list }}" * 99,
    "{{ ('a' * 16000000) | wordwrap(1) | indent(999) | replace('a', 'bb') | urlize }}",
    "{% set a = [10**900] * 9999 %}{{ a | join(a | string) | length }}" * 50,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(s='a') %}{% for i in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "{% set n = namespace(s=[1]) %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "{% set n = namespace(s=3) %}{% for i in range(99) %}{% set n.s = n.s * n.s %}{% endfor %}",
    "{{ 'a' | center(10**11) }}",
    "{{ '%99999999999d' | format(1) }}",
    "{{ '{:>99999999999}'.format(1) }}",
    "{{ '{0:{1}}'.format(1, 99999999999) }}",
    "{{ 'a'.ljust(10**11) }}{{ 'a'.zfill(10**11) }}{{ 'a\t'.expandtabs(10**11) }}",
    "{{ dict(a=range(99999) | list) | tojson(indent=10**8) }}",
    "{% set x = ['a' * 9999999] * 999 %}{{ x | join }}",
    "{% set x = ['a' * 9999999] * 999 %}{{ x | pprint }}{{ {'a': x} | xmlattr }}",
    "{{ ('<' * 15000000) | striptags | e }}{{ ('<!--' * 3000000) | striptags }}",
    "{% set x = cycler(*range(99999)) %}{{ range(10**17) | groupby('real') }}",
    "{{ 'a' ~ " * 200000 + "'a' }}",
    "{{ 1 " + "+ 1 " * 200000 + "}}",
    "{{ " + "not " * 200000 + "1 }}",
    "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}",
    "{% if 1 %}" * 50000 + "{% endif %}" * 50000,
    "{{ (('a'|center(9999999))|center(99999999))|center(999999999) }}",
    "{{ " + "9" * 500000 + " }}",
]


@linux
@pytest.mark.parametrize("source", few(SLOW, *SLOW[::6]), ids=lambda s: s[:40])
def test_no_template_takes_more_than_it_may(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops or none, at compiling or rendering: one of the limits, or the template's own error."""
    monkeypatch.setattr("weft.models.text.chat.MAX_SECONDS", 0.8)
    with pytest.raises(WeftError, match="chat template") as e:
        render(source)
    assert len(str(e.value).splitlines()) <= 2 and max(map(len, str(e.value).splitlines())) < 300


@linux
def test_the_child_stays_below_its_memory() -> None:
    """What it had at most, as the system counted it."""
    done = script("""
        import resource
        from weft.core.errors import ModelError
        from weft.models.text.chat import ChatTemplate
        source = "{% set x = namespace(a=[]) %}{% for i in range(9999) %}{% set x.a = x.a + "\\
            "[('a' ~ i) * 9999] %}{% endfor %}"
        for source in (source, "{{ 'a' | center(10**11) }}", "{{ 'a' | center(10**9) | length }}"):
            try:
                ChatTemplate(source).render([{"role": "user"}], True, {}, {})
            except ModelError as e:
                print("more than 512 MiB" in str(e))
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 640 << 10)
    """)
    assert done.stdout.split() == [b"True"] * 4 and not done.stderr, done.stderr


def test_it_works_again_after_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.models.text.chat.MAX_SECONDS", 1.0)
    source = (
        "{% for i in range(messages[0].n) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    )
    template = ChatTemplate(source + "{{ messages[0].n }}")
    assert template.render([{"role": "user", "n": 1}], True, {}, {}) == "1"
    with pytest.raises(ModelError, match="ran for more than 1 s\n"):
        template.render([{"role": "user", "n": 99999}], True, {}, {})
    assert template.render([{"role": "user", "n": 2}], True, {}, {}) == "2"


def test_templates_do_not_share_a_child() -> None:
    one, two = ChatTemplate("1{{ messages[0].role }}"), ChatTemplate("2")
    assert [t.render(MESSAGES, True, {}, {}) for t in (one, two, one)] == ["1user", "2", "1user"]


def test_what_json_cannot_hold_is_refused() -> None:
    template = ChatTemplate("{{ messages }}{{ x }}")
    nested: list = []
    nested.append(nested)
    for x in (object(), {1, 2}, b"bytes", nested):
        with pytest.raises(UsageError, match="JSON"):
            template.render(MESSAGES, True, {}, {"x": x})
    assert template.render([{"role": "u", "content": (1, None)}], True, {}, {"x": "\ud800é😀"})
    assert template.render([], True, {}, {"x": "\ud800é😀"}) == "[]\ud800é😀"


PIECES = (
    "{{ }} {% %} for if endif endfor in i messages range ( ) [ ] | ~ * ** + 'a' 10**9 9 set x = "
    "x join center list sort sum map round tojson indent namespace() macro endmacro f() , "
    "loop.index not is defined {# #} . format wordwrap batch slice lipsum() cycler"
)


@linux
@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split()), max_size=25))
def test_any_template_gives_text_or_one_error(words: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.models.text.chat.MAX_SECONDS", 1.0)
        try:
            assert isinstance(render(" ".join(words)), str)
        except WeftError as e:
            assert "chat template" in str(e) and len(str(e).splitlines()) <= 2


# -- the child itself -----------------------------------------------------------------------------


def worker(folder: Path, body: str) -> Path:
    path = folder / "worker.py"
    path.write_text("def handle(request):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    return path


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("raise ValueError('first\\nsecond')", ChildError, "^first$"),
        ("class Panic(BaseException): pass\nraise Panic('no entry')", ChildError, "^no entry$"),
        ("import os\nos._exit(3)", Stopped, "crashed"),
        ("import os\nos.kill(os.getpid(), 9)", Stopped, "crashed"),
        ("while True: pass", Stopped, "ran for more than 1 s"),
        ("import time\ntime.sleep(1000)", Stopped, "ran for more than 1 s"),
        ("return 'a' * 2000000", Stopped, "wrote more than 1 MiB"),
        ("raise MemoryError", Stopped, "more than 256 MiB of memory"),
        ("return {1, 2}", ChildError, "JSON"),
    ],
)  # fmt: skip
def test_every_end_has_a_name(tmp_path: Path, body: str, kind: type, said: str) -> None:
    source = worker(tmp_path, "if request == 'quiet': return 7\n" + body)
    child = Confined(source, (), "quiet", LIMITS)  # type: ignore[arg-type]
    assert child.start() == 7
    with pytest.raises(kind, match=said):
        child.call({}, Limits(1, 256 << 20, 1 << 20))
    assert child.call("quiet", LIMITS) == 7  # type: ignore[arg-type]
    child.close()


@linux
def test_it_has_nothing_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, no open files, no modules, and no way to write a file or print."""
    monkeypatch.setenv("WEFT_SECRET", "hush")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    held = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(held, True)
    body = """
        import os, sys
        print("printed")
        try:
            with open(request["path"], "w") as f:
                f.write("x")
            wrote = True
        except OSError:
            wrote = False
        files = [os.readlink(f"/proc/self/fd/{i}") for i in os.listdir("/proc/self/fd")[:-1]]
        return [sorted(os.environ), "weft" in sys.modules, wrote, files]
    """
    child = Confined(worker(tmp_path, body), (), {"path": str(tmp_path / "x")}, LIMITS)
    names, weft, wrote, files = child.start()
    child.close()
    os.close(held)
    assert set(names) <= {
        "LC_CTYPE", "LD_LIBRARY_PATH", "MALLOC_ARENA_MAX", "RAYON_NUM_THREADS",
        "TOKENIZERS_PARALLELISM", "TZ",
    }  # fmt: skip
    assert not weft and not wrote and os.path.getsize(tmp_path / "x") == 0
    assert all(f.startswith(("pipe:", "/dev/null")) for f in files), files


USE = """
    import os, signal, sys, time
    from weft.models.text.chat import ChatTemplate
    t = ChatTemplate("{% if messages[0].n %}{% for i in range(99999) %}{% for j in range(99999) %}"
        "{% endfor %}{% endfor %}{% endif %}{{ messages[0].role }}")
    def use(n=0):
        return t.render([{"role": "user", "n": n}], True, {}, {})
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_gets_its_own(tmp_path: Path) -> None:
    done = script(
        USE
        + """
    assert use() == "user"
    mine = t._child._process.pid
    if os.fork() == 0:
        assert t._child._process is None and use() == "user" and t._child._process.pid != mine
        sys.exit(0)  # with what is done at exit
    assert os.wait()[1] == 0 and use() == "user" and t._child._process.pid == mine
    print("done")
    """
    )
    assert done.stdout == b"done\n", done.stderr


@pytest.mark.skipif(os.name != "posix", reason="closing standard files is POSIX")
def test_without_standard_files() -> None:
    done = script(USE + """
    os.write(3, use().encode())
    """, preexec_fn=lambda: (os.dup2(1, 3), os.close(0), os.close(1)), pass_fds=(3,))  # fmt: skip
    assert done.stdout == b"user" and not done.stderr, done.stderr


def _gone(pid: int) -> bool:
    """That a process ends; waits for it as long as the test may last."""
    while True:
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True


@linux
@pytest.mark.parametrize("busy", [False, True])
def test_it_ends_with_its_parent(busy: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(USE + f"""
    print(t._child._process.pid, flush=True)
    use(1) if {busy} else time.sleep(1000)
    """)], stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert _gone(child)


@linux
def test_an_interrupt_ends_the_work_and_no_more() -> None:
    done = script(
        USE
        + """
    import threading
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        use(1)
    except KeyboardInterrupt:
        assert t._child._process is None
        print(use())
    """
    )
    assert done.stdout == b"user\n", done.stderr


def test_threads_take_turns() -> None:
    from concurrent.futures import ThreadPoolExecutor

    template = ChatTemplate("{{ messages[0].content }}")

    def one(i: int) -> str:
        return template.render([{"role": "user", "content": str(i)}], True, {}, {})

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(200))) == [str(i) for i in range(200)]


def test_signals_are_what_they_were() -> None:
    before = signal.getsignal(signal.SIGINT)
    render("x")
    assert signal.getsignal(signal.SIGINT) is before

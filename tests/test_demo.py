"""The demo, on a part of the standard library small enough for a test."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from examples.census_tasks import counted_strictly, counted_tolerantly

ROOT = Path(__file__).resolve().parents[1]
BROKEN = "test/tokenizedata/*.py"  # absent where the test folders are not installed


def run_demo(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "examples.census", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_broken_files_end_on_the_shelf_and_a_replay_empties_it() -> None:
    files = list(Path(sysconfig.get_path("stdlib")).glob(BROKEN))
    if not files:
        pytest.skip("this Python came without its test folders")

    printed = run_demo("--files", BROKEN)

    assert "SyntaxError" in printed
    assert "Replaying" in printed
    assert f"submitted {len(files)} = succeeded {len(files)} + parked 0, 0 lost" in printed


@pytest.mark.slow
def test_without_broken_files_the_demo_adds_none_and_says_so(tmp_path: Path) -> None:
    printed = run_demo("--files", "json/*.py", "--folder", str(tmp_path))

    assert "The demo adds none." in printed
    assert "0 lost" in printed
    assert (tmp_path / "census.db").exists()


def test_the_strict_reader_counts_what_is_in_a_file() -> None:
    source = b"# coding: latin-1\nclass A:\n    def f(self): return '\xe9'\n\nasync def g(): pass\n"

    counted = counted_strictly(source)

    assert (counted["functions"], counted["classes"], counted["lines"]) == (2, 1, 5)


@pytest.mark.parametrize("source", [b"def f(): print 1\n", b"# coding: uft-8\nclass A: pass\n", b"x = '\xff'\0\n"])
def test_the_tolerant_reader_takes_what_the_strict_one_refuses(source: bytes) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        counted_strictly(source)

    counted = counted_tolerantly(source)

    assert counted["lines"] == source.count(b"\n")

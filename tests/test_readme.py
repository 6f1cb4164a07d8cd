"""The README is a program: its blocks are run in order, in an empty folder, as a reader would type them.

python file=NAME   is written to that file
python, bash       are run; `services` in the info string: on Postgres and RabbitMQ
console            names make targets, text is output; neither is run
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lattice_tasks.tasks.invocation import drawing

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<words>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 240  # half a minute on an idle machine


def blocks() -> list[re.Match[str]]:
    found = list(BLOCK.finditer(README))
    assert found
    return found


def script(*, on_services: bool) -> str:
    """The blocks of one shape as one bash script, each echoed so that a failure shows its place."""
    parts = ["set -euo pipefail", "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT"]
    for number, block in enumerate(blocks()):
        language, words, text = block["language"], block["words"].split(), block["text"]
        files = [word.removeprefix("file=") for word in words if word.startswith("file=")]
        if files:
            parts += [f"cat >{shlex.quote(files[0])} <<'END OF BLOCK'\n{text}END OF BLOCK", f"python {files[0]}"]
        elif language in ("python", "bash") and ("services" in words) == on_services:
            parts.append(f"echo '### block {number}, line {README[: block.start()].count(chr(10)) + 1}'")
            parts.append(f"python - <<'END OF BLOCK'\n{text}END OF BLOCK" if language == "python" else text)
    return "\n".join(parts)


def run(text: str, folder: Path, **environment: str) -> str:
    """What the script printed on both streams; fails with it when the script does."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LATTICE_")}
    clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{clean['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=clean | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    logs = "".join(path.read_text() for path in folder.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n--- logs\n{logs[-4000:]}"
    return done.stdout


def test_every_block_is_of_a_kind_that_is_run_or_known_not_to_be() -> None:
    assert {block["language"] for block in blocks()} == {"python", "bash", "console", "text"}


def test_the_picture_of_states_is_the_one_the_table_draws() -> None:
    shown = re.search(r"<!-- states -->\n```text\n(.*?)\n?```\n<!-- /states -->", README, re.DOTALL)

    assert shown is not None
    assert shown[1] == drawing()


def test_console_blocks_name_make_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    commands = [line for block in blocks() if block["language"] == "console" for line in block["text"].splitlines()]

    assert commands
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE), command


@pytest.mark.slow
def test_the_readme_runs_on_one_sqlite_file(tmp_path: Path) -> None:
    printed = run(script(on_services=False), tmp_path)

    assert "cat-400.jpg" in printed
    assert "['dog-200.jpg', 'cow-64.jpg']" in printed
    assert "['fruit/pear', 'fruit/fig', 'fruit/apple']" in printed
    assert "3 kinds left" in printed
    assert "is parked: ValueError: invalid literal for int() with base 10: '12,50'" in printed


@pytest.mark.slow
def test_the_readme_runs_on_services(tmp_path: Path, postgres_url: str, rabbitmq_url: str) -> None:
    printed = run(script(on_services=True), tmp_path, LATTICE_STORE_URL=postgres_url, LATTICE_BROKER_URL=rabbitmq_url)

    assert "elk-200.jpg" in printed

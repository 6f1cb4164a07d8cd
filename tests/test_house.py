"""The rules of the house that a machine can check; each reads the real tree."""

import ast
import configparser
import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

from lattice_tasks import errors
from lattice_tasks.settings import Settings
from lattice_tasks.telemetry import EVENTS

ROOT = Path(__file__).resolve().parents[1]
HOUSE = ROOT / "lattice_tasks"
PLUGINS = ROOT / "plugins"
MOST_LINES = 400
# What users were promised to find in the package itself.
PROMISED = {
    "Lattice",
    "Park",
    "QueueFull",
    "TaskCancelled",
    "TaskDiscarded",
    "TaskExpired",
    "TaskParked",
    "current",
}
WALL_CLOCKS = {
    "date.today",
    "datetime.now",
    "datetime.today",
    "datetime.utcnow",
    "time.ctime",
    "time.gmtime",
    "time.localtime",
    "time.time",
    "time.time_ns",
}
UNSAFE_MODULES = {"dill", "marshal", "pickle", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "os.popen", "os.system", "yaml.load", "yaml.unsafe_load"}
RUNS_SQL = {"execute", "executemany", "executescript", "execute_sql"}
SQL_TEXT = re.compile(
    r"\s*(select\s.+\sfrom\s|insert\s+into\s|update\s+\w+\s+set\s|delete\s+from\s|with\s+\w+\s+as\s*\("
    r"|(create|alter|drop)\s+(unique\s+)?(table|index)\s)",
    re.IGNORECASE | re.DOTALL,
)
IDLE_NAMES = {"base", "common", "helper", "helpers", "manager", "util", "utils"}


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def sources(*folders: Path) -> list[Path]:
    found = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    assert found
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of names, `.c` when it starts elsewhere."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{dotted(value)}.{name}"
    return ""


def nodes(*folders: Path, kind: type | tuple[type, ...]) -> Iterator[tuple[Path, ast.AST]]:
    for path in sources(*folders):
        yield from ((path, node) for node in ast.walk(tree(path)) if isinstance(node, kind))


def imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Every dotted name that the statement binds or loads."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    return {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}


def rooms() -> set[str]:
    found = {path.stem for path in HOUSE.glob("*.py")} | {path.parent.name for path in HOUSE.glob("*/__init__.py")}
    return found - {"__init__"}


def test_imports_only_go_down_the_stairs() -> None:
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_logo=True))"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("contract", "owner"), [("sql", "store"), ("amqp", "broker")])
def test_no_room_escapes_a_contract(contract: str, owner: str) -> None:
    listed = setup()[f"importlinter:contract:{contract}"]["source_modules"].split()

    assert set(listed) == {f"lattice_tasks.{room}" for room in rooms() - {owner}}


def test_the_packages_listed_are_the_folders() -> None:
    listed = setup()["options"]["packages"].split()
    folders = {".".join(path.relative_to(ROOT).parent.parts) for path in sources(HOUSE)}
    mapped = {"lattice_tasks_plugins" for _ in sources(PLUGINS)}

    assert sorted(listed) == sorted(folders | mapped)
    assert all((ROOT / folder.replace(".", "/") / "__init__.py").is_file() for folder in folders)


def test_every_entry_point_leads_to_something() -> None:
    try:
        ours = metadata.distribution("lattice-tasks").entry_points
    except metadata.PackageNotFoundError:
        if os.environ.get("CI"):
            raise
        pytest.skip("the project is not installed here")

    assert {point.name: callable(point.load()) for point in ours} == dict.fromkeys(
        ("lattice-tasks", "lattice", "prometheus"), True
    )


def test_no_file_is_long() -> None:
    optional = [folder for folder in (ROOT / "benchmarks", ROOT / "examples") if folder.exists()]
    long_files = {
        str(path.relative_to(ROOT)): lines
        for path in sources(HOUSE, PLUGINS, ROOT / "tests", *optional)
        if (lines := len(path.read_text("utf-8").splitlines())) > MOST_LINES
    }

    assert long_files == {}


def test_a_file_is_named_after_what_it_is() -> None:
    assert [path for path in sources(HOUSE, PLUGINS) if path.stem in IDLE_NAMES] == []


def test_the_clock_is_read_in_one_file() -> None:
    reads = {
        place(path, node)
        for path, node in nodes(HOUSE, PLUGINS, kind=(ast.Attribute, ast.ImportFrom))
        if path != HOUSE / "clock.py"
        for name in (imported(node) if isinstance(node, ast.ImportFrom) else {dotted(node)})
        if ".".join(name.split(".")[-2:]) in WALL_CLOCKS
    }

    assert reads == set()
    assert any(dotted(node) in WALL_CLOCKS for node in ast.walk(tree(HOUSE / "clock.py")))


def test_imports_stand_at_the_top() -> None:
    hidden = [
        place(path, node)
        for path in sources(HOUSE, PLUGINS)
        for statement in tree(path).body
        for node in ast.walk(statement)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    for_types = [
        place(path, node)
        for path, node in nodes(HOUSE, PLUGINS, kind=(ast.Name, ast.Attribute))
        if dotted(node).split(".")[-1] == "TYPE_CHECKING"
    ]

    assert (hidden, for_types) == ([], [])


def test_the_package_exports_exactly_its_public_names() -> None:
    package = importlib.import_module("lattice_tasks")
    bound = {
        name
        for node in tree(HOUSE / "__init__.py").body
        for name in (
            [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.Import | ast.ImportFrom)
            else [dotted(target) for target in node.targets]
            if isinstance(node, ast.Assign)
            else []
        )
        if not name.startswith("_")
    }

    assert sorted(name for name in package.__all__ if not name.startswith("_")) == sorted(bound)
    assert set(package.__all__) >= PROMISED
    assert all(hasattr(package, name) for name in package.__all__)


def test_the_example_settings_are_all_settings_with_their_defaults() -> None:
    text = (ROOT / "conf" / "lattice.toml").read_text("utf-8")

    shown = tomllib.loads(re.sub(r"^# (?=\w+ = )", "", text, flags=re.MULTILINE))

    assert shown == {field.name: getattr(Settings(), field.name) for field in fields(Settings)}


def test_the_error_tree_in_the_docstring_is_the_real_one() -> None:
    drawn: dict[str, tuple[str, str]] = {}
    branch: list[str] = []
    block = re.search(r"^ +LatticeError\n(?:.+\n)*", errors.__doc__ or "", re.MULTILINE)
    assert block
    for line in block[0].splitlines():
        name, also = re.fullmatch(r"\W*(\w+)(?: +\(also an? (\w+)\))?", line).groups(default="")
        depth = line.index(name) // 4 - 1
        branch[depth:] = [name]
        drawn[name] = (branch[depth - 1] if depth else "", also)

    real = {
        name: (
            next((base.__name__ for base in item.__bases__ if issubclass(base, errors.LatticeError)), ""),
            next(
                (base.__name__ for base in item.__bases__ if name != "LatticeError" and base.__module__ == "builtins"),
                "",
            ),
        )
        for name, item in inspect.getmembers(errors, inspect.isclass)
        if item.__module__ == errors.__name__
    }

    assert drawn == real
    assert sorted(errors.__all__) == sorted(real)


def test_errors_are_born_in_one_file() -> None:
    strays = [
        place(path, node)
        for path, node in nodes(HOUSE, PLUGINS, kind=ast.ClassDef)
        if path != HOUSE / "errors.py"
        for base in node.bases
        if (name := dotted(base).split(".")[-1]) in errors.__all__ or re.fullmatch(r"\w*(Error|Exception)", name)
    ]

    assert strays == []


def test_the_table_of_events_is_what_is_emitted() -> None:
    emitted: dict[str, set[frozenset[str]]] = {}
    for _, node in nodes(HOUSE, kind=ast.Call):
        if dotted(node.func).endswith(".emit") and node.args and isinstance(node.args[0], ast.Constant):
            fields = frozenset(keyword.arg or "**" for keyword in node.keywords)
            emitted.setdefault(str(node.args[0].value), set()).add(fields)
    wrong_fields = {
        name: sorted(map(sorted, used))
        for name, used in emitted.items()
        if name in EVENTS and not all("**" in fields or fields == set(EVENTS[name].fields) for fields in used)
    }

    said = {node.value for path, node in nodes(HOUSE, kind=ast.Constant) if path != HOUSE / "telemetry.py"}

    assert emitted.keys() - EVENTS.keys() == set()
    assert EVENTS.keys() - said == set()
    assert wrong_fields == {}


def test_nothing_runs_text_as_code_or_reads_it_as_objects() -> None:
    calls = [
        place(path, node)
        for path, node in nodes(HOUSE, PLUGINS, kind=ast.Call)
        if dotted(node.func) in UNSAFE_CALLS
        or any(keyword.arg == "shell" and ast.unparse(keyword.value) != "False" for keyword in node.keywords)
    ]
    modules = [
        place(path, node)
        for path, node in nodes(HOUSE, PLUGINS, kind=(ast.Import, ast.ImportFrom))
        if {name.split(".")[0] for name in imported(node)} & UNSAFE_MODULES
    ]

    assert (calls, modules) == ([], [])


def test_sql_is_spoken_in_the_store_only() -> None:
    outside = [path for path in sources(HOUSE, PLUGINS) if HOUSE / "store" not in path.parents]
    spoken = [
        place(path, node)
        for path in outside
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in RUNS_SQL)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL_TEXT.match(node.value))
    ]

    assert spoken == []
    assert any(
        isinstance(n, ast.Constant) and SQL_TEXT.match(str(n.value))
        for _, n in nodes(HOUSE / "store", kind=ast.Constant)
    )

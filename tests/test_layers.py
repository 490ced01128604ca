"""Who may import whom. A module imports from lower floors only, never from its own or above.

| floor | modules |
|---|---|
| 16 | `__init__`, `serve` |
| 17 | `__main__` |
| 15 | `standalone` |
| 14 | `app` |
| 13 | `sharing`, `served` |
| 12 | `shared/handshake`, `shared/figures` |
| 11 | `shared/whole` |
| 10 | `shared/elsewhere` |
| 9 | `shared/store` |
| 8 | `shared/accepting`, `shared/outbox`, `shared/member`, `shared/delivery`, `shared/sessions` |
| 7 | `shared/session_keys` |
| 4 | `shared/claims` |
| 5 | `shared/adoption` |
| 9 | `admin/handlers` |
| 8 | `admin/overview` |
| 1 | `admin/recent`, `admin/messages` |
| 0 | `admin` |
| 10 | `gauges`, `routes`, `training/handshake` |
| 9 | `answering`, `handlers`, `handshake`, `keeper`, `rest` |
| 8 | `sampling` |
| 7 | `runs`, `training/behind` |
| 7 | `bulk` |
| 6 | `delivery`, `sessions`, `upstream/dispatch`, `training/embedded` |
| 5 | `store/memory`, `upstream/catalog`, `training/trainer` |
| 7 | `shared/verbs` |
| 6 | `shared/samples` |
| 5 | `shared/replies` |
| 4 | `shared/outcomes` |
| 3 | `shared/commands` |
| 2 | `shared/library` |
| 0 | `shared`, `shared/groups` |
| 8 | `reloads` |
| 3 | `workers/*` |
| 7 | `outputs`, `validity` |
| 6 | `outcomes`, `tracing/starting` |
| 5 | `tracing/traces`, `tracing/otlp` |
| 4 | `samplelog`, `accesslog`, `guarded`, `tracing/spans` |
| 3 | `cycle`, `gate`, `shared/*` |
| 5 | `openapi` |
| 4 | `schemas`, `store/targets`, `ledger`, `training/proxy`, `upstream/choice` |
| 4 | `store/budget`, `store/waiting`, `upstream/pool`, `upstream/remedy`, `upstream/retrying` |
| 6 | `upstream/checks`, `upstream/following` |
| 5 | `upstream/fleet` |
| 4 | `upstream/run`, `upstream/answer_cap`, `upstream/figures` |
| 3 | `upstream/standing` |
| 1 | `upstream/breaker`, `upstream/addresses` |
| 3 | `upstream/connection`, `upstream/request` |
| 3 | `store/records`, `training/incoming`, `training/relay`, `checkpoints` |
| 4 | `upstream/listing` |
| 3 | `upstream/client` |
| 2 | `route`, `lifespan`, `upstream/post`, `upstream/prompt`, `upstream/naming`, `operations` |
| 1 | `sources/*` |
| 2 | `training/headers`, `training/connection`, `training/prefix`, `upstream/origin` |
| 1 | `asgi`, `codec/*`, `ids`, `store/states`, `upstream/verdict`, `state/*`, `upstream/exchange` |
| 2 | `descriptors`, `peer`, `upstream/stops`, `refused`, `frontdoor`, `memory_watch` |
| 6 | `drain` |
| 1 | `listeners`, `watchdog` |
| 0 | `signals` |
| 3 | `access/*` |
| 0 | `addresses`, `caller`, `textline` |
| 1 | `configuration`, `admission`, `procfs`, `protocol`, `replies`, `pauses`, `writer` |
| 1 | `processlog`, `shareable` |
| 0 | `capped`, `kernel`, `linefile`, `onewrite`, `upstream/large` |
| 0 | `clock`, `errors`, `metrics`, `settings/*`, `store`, `store/completions`, `store/expiry`, |
| 0 | `store/shortage` |
| 0 | `tracing`, `tracing/context` |
| 0 | `codec`, `upstream`, `upstream/poison`, `upstream/window`, `training`, `turns`, `allocator` |

`package/*` is a package as one unit: its modules may also import each other, without a circle.

| library | where it may be imported |
|---|---|
| libvalkey | `shared/*` |
| httptools | `upstream/connection`, `cycle`, `guarded` |
| aiohttp | `upstream/client`, `upstream/post`, `training/connection`, `training/proxy`, |
| aiohttp | `training/relay`, `capped` |
| yarl | `upstream/client`, `training/prefix` |
| google | `codec/*` |
| numpy | `codec`, `codec/*` |
| opentelemetry | `tracing/otlp` |
| psycopg | `sources/postgres` |
| simdjson | `codec/*` |
| time | `clock` |
| uvicorn | `serve`, `cycle`, `guarded` |
"""

import ast
import graphlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE, HARNESS = ROOT / "asgi_gateway", ROOT / "loadgen"
MAX_LINES = 320
# Servers run us and frameworks are what we stand in for; neither is imported.
NEVER = ("daphne", "fastapi", "granian", "gunicorn", "hypercorn", "pydantic", "starlette", "tinker")


def rows(kind: str) -> Iterator[tuple[str, set[str]]]:
    """First cell and the quoted names of the second, of the docstring's table headed `kind`."""
    table = (__doc__ or "").split(f"| {kind} |")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        first, second = line.strip("|").split("|", 1)
        yield first.strip(), set(re.findall(r"`([^`]+)`", second))


def name_of(path: Path) -> str:
    """asgi_gateway/store/memory.py -> store/memory; a package is called by its folder."""
    relative = path.relative_to(PACKAGE).with_suffix("")
    parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
    return "/".join(parts) or "__init__"


SOURCES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text()) for name, path in SOURCES.items()}
FLOORS = {module: int(floor) for floor, modules in rows("floor") for module in modules}
LIBRARIES: dict[str, set[str]] = {}
for library, modules in rows("library"):
    LIBRARIES.setdefault(library, set()).update(modules)


def row_of(module: str) -> str | None:
    """The entry of the table that a module stands under: its own, or its package's."""
    for entry in (module, f"{module.split('/')[0]}/*"):
        if entry in FLOORS:
            return entry
    return None


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports, those inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            for alias in node.names:
                yield f"{node.module}.{alias.name}"


def ours(tree: ast.AST) -> set[str]:
    """Our modules that a tree imports; `from asgi_gateway import x` may mean a module or a name."""
    found = set()
    for dotted in imported(tree):
        top, *rest = dotted.split(".")
        if top == PACKAGE.name:
            while rest and "/".join(rest) not in SOURCES:
                rest.pop()
            found.add("/".join(rest) or "__init__")
    return found


def libraries(tree: ast.AST) -> set[str]:
    return {dotted.split(".")[0] for dotted in imported(tree)} - {PACKAGE.name}


IMPORTS = {name: ours(tree) for name, tree in TREES.items()}


# --- floors -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", SOURCES)
def test_every_module_has_a_floor(module: str) -> None:
    assert row_of(module), f"give {module} a row in the table of {Path(__file__).name}"


def test_the_table_names_what_exists() -> None:
    assert {entry for entry in FLOORS if not entry.endswith("/*")} <= set(SOURCES)


@pytest.mark.parametrize("module", SOURCES)
def test_imports_come_from_lower_floors(module: str) -> None:
    here = row_of(module)
    assert here
    for other in IMPORTS[module]:
        there = row_of(other)
        assert there
        if here.endswith("/*") and here == there:
            continue
        assert FLOORS[there] < FLOORS[here], f"{module} imports {other}"


def test_nothing_imports_in_a_circle() -> None:
    """Within a package too, of which the floors say nothing; CycleError names the circle."""
    graph = {module: others - {module} for module, others in IMPORTS.items()}
    assert set(graphlib.TopologicalSorter(graph).static_order()) == set(SOURCES)


def test_the_reading_of_imports_sees_them_all() -> None:
    """These tests can fail."""
    tree = ast.parse(
        "import asgi_gateway.app\n"
        "from asgi_gateway import protocol, Settings\n"
        "from asgi_gateway.store.memory import MemoryStore\n"
        "def f():\n    import uvicorn.config\n    from time import monotonic\n"
    )
    assert ours(tree) == {"app", "protocol", "__init__", "store/memory"}
    assert libraries(tree) == {"uvicorn", "time"}
    assert len(SOURCES) > 20
    assert IMPORTS["app"] > {"sampling", "sharing", "upstream/client"}


# --- libraries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("module", SOURCES)
def test_libraries_stay_where_they_belong(module: str) -> None:
    for library in libraries(TREES[module]):
        assert library not in NEVER, f"{module} imports {library}"
        if library in LIBRARIES:
            allowed = LIBRARIES[library]
            assert {module, f"{module.split('/')[0]}/*"} & allowed, f"{module} imports {library}"
        else:
            assert library in sys.stdlib_module_names or library == "msgspec", (
                f"{module} imports {library}, which the table does not know"
            )


def names_environment(tree: ast.AST) -> bool:
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv"))
        or (isinstance(node, ast.ImportFrom) and node.module == "os")
        for node in ast.walk(tree)
    )


def test_the_environment_is_read_in_one_place() -> None:
    readers = [module for module, tree in TREES.items() if names_environment(tree)]
    assert readers == ["configuration"]


def test_modules_hold_constants_only() -> None:
    for module, tree in TREES.items():
        assert not [node for node in ast.walk(tree) if isinstance(node, ast.Global)], module


# --- the harness --------------------------------------------------------------------------------


def test_the_harness_imports_nothing_of_the_gateway_and_the_reverse() -> None:
    """Its worth is that it can disagree."""
    harness = sorted(HARNESS.rglob("*.py"))
    assert harness
    for path in harness:
        assert PACKAGE.name not in {
            dotted.split(".")[0] for dotted in imported(ast.parse(path.read_text()))
        }, path
    for module, tree in TREES.items():
        assert HARNESS.name not in libraries(tree), module


# --- what an import costs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    ["import asgi_gateway", "import asgi_gateway; asgi_gateway.create_app()"],
    ids=["import", "create_app"],
)
def test_no_framework_and_no_server_is_loaded(program: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "ASGI_GATEWAY_UPSTREAM__URLS": "http://127.0.0.1:9"},
    )
    loaded = {line.rsplit("|", 1)[1].strip() for line in ran.stderr.splitlines() if "|" in line}
    assert "asgi_gateway.app" in loaded, "the report was read"
    packages = {name.split(".")[0] for name in loaded}
    assert packages.isdisjoint({*NEVER, "loadgen", "uvicorn", "grpc", "opentelemetry"})


# --- length -------------------------------------------------------------------------------------


def test_a_file_fits_in_a_head() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in SOURCES.values()
        if not path.name.endswith("_pb2.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}

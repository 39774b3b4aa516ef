"""What is packaged is what is there, and the command answers without loading the heavy libraries."""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PYPROJECT["tool"]["setuptools"]


def folder_of(package):
    """Where a package's files are, by the longest mapped name above it."""
    parts = package.split(".")
    for length in range(len(parts), 0, -1):
        mapped = SETUPTOOLS["package-dir"].get(".".join(parts[:length]))
        if mapped is not None:
            return ROOT.joinpath(mapped, *parts[length:])
    raise LookupError(package)


def test_every_package_folder_is_listed():
    listed = {folder_of(package) for package in SETUPTOOLS["packages"]}
    there = {
        init.parent for mapped in SETUPTOOLS["package-dir"].values() for init in (ROOT / mapped).rglob("__init__.py")
    }
    assert there == listed
    roots = {init.parent for init in ROOT.glob("*/__init__.py")} - {ROOT / "tests"}
    assert roots == {ROOT / mapped for mapped in SETUPTOOLS["package-dir"].values()}
    modules = {path.parent for mapped in SETUPTOOLS["package-dir"].values() for path in (ROOT / mapped).rglob("*.py")}
    assert modules == listed


def test_every_library_that_is_imported_is_a_declared_dependency():
    def normal(name):
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["ray"]]
    declared = {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}
    imported = set()
    for mapped in SETUPTOOLS["package-dir"].values():
        for path in (ROOT / mapped).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    imported |= {alias.name.partition(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    imported.add(node.module.partition(".")[0])
    imported -= {"dspark", *sys.stdlib_module_names}
    owners = packages_distributions()
    undeclared = {name for name in imported if not declared & {normal(owner) for owner in owners.get(name, [name])}}
    assert imported and not undeclared


def test_every_top_level_package_says_that_it_is_typed():
    for package in SETUPTOOLS["package-dir"]:
        assert (folder_of(package) / "py.typed").is_file()
        assert "py.typed" in SETUPTOOLS["package-data"][package]


def test_a_build_holds_every_file(tmp_path):
    subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "-q", "build", "--build-base", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    built = {str(path.relative_to(tmp_path / "lib")) for path in (tmp_path / "lib").rglob("*") if path.is_file()}
    expected = set()
    for package in SETUPTOOLS["packages"]:
        files = list(folder_of(package).glob("*.py"))
        for pattern in SETUPTOOLS["package-data"].get(package, []):
            found = list(folder_of(package).glob(pattern))
            assert found, f"{package} has no {pattern}"
            files += found
        expected |= {str(Path(*package.split("."), path.relative_to(folder_of(package)))) for path in files}
    assert built == expected


def run(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT / "tests")


HEAVY = {"torch", "numpy", "transformers", "tokenizers", "pandas", "matplotlib", "sklearn", "triton", "ray", "pyarrow"}


def loaded_after(code, *arguments, returncode=0):
    """Names of the packages that are loaded once `code` has run."""
    tell = "; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})), file=sys.stderr); sys.exit(status)"
    done = run(f"import json, sys; {code}{tell}", *arguments)
    assert done.returncode == returncode, done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_packages_below_the_commands_import_nothing_heavy():
    code = "import dspark.cli.main, dspark.engine, dspark.engine.jobs.decode_job; status = 0"
    assert not loaded_after(code) & HEAVY


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["decode", "--help"],
        ["decode"],
        ["profile", "--help"],
        ["calibrate", "--help"],
        ["export"],
        ["train", "--help"],
        ["train"],
    ],
    ids=" ".join,
)
def test_help_and_mistakes_are_answered_without_anything_heavy(arguments):
    code = "from dspark.cli.main import main; status = main()"
    assert not loaded_after(code, *arguments, returncode=0 if "--help" in arguments else 2) & HEAVY


def test_constraints_pin_everything_exactly():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all("==" in line and "+" not in line for line in lines)
    assert "torch==2.13.0" in lines


def test_installed_entry_point():
    script = Path(sys.executable).with_name("dspark")
    if not os.access(script, os.X_OK):
        pytest.skip("dspark is not installed as a command here")
    done = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"dspark {PYPROJECT['project']['version']}\n")

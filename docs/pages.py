"""The pages of `make docs` that are made from something else, and so cannot be out of date.

A hook of mkdocs: README.md is taken apart into pages; the command line, the passes and the devices are written from
what the program itself says; the tour is its source. The guide's pages are files of docs/, which GitHub shows as well.
Links into the repository that are no page become names of files.
"""

from __future__ import annotations

import dataclasses
import html
import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

# Section of README.md → its page. What is not listed stays on the first page.
SECTIONS = {
    "More of the command line": "cli.md",
    "Beside other tools": "compare.md",
    "Speed": "speed.md",
    "Limits": "limits.md",
}

# What users may import, by page section: module → names, or None for all that it defines.
API: dict[str, dict[str, list[str] | None]] = {
    "Compile and run": {
        "pfvm": ["optimize", "load", "compile", "CompiledFunction", "epoch", "prefetch", "devices", "Options"],
        "pfvm.runtime.executable": ["Executable", "TensorSpec"],
        "pfvm.runtime.device": ["Device"],
    },
    "Capture, gradients and loops": {
        "pfvm": ["export", "lint", "grad", "loop"],
        "pfvm.compiler.capture.lint": ["Finding"],
        "pfvm.compiler.signature": ["StateEntry", "read_manifest"],
    },
    "Rules and passes of your own": {
        "pfvm": ["run_passes"],
        "pfvm.passes.rules": ["rule", "forward"],
        "pfvm.passes.rewriter": ["Rewriter"],
        "pfvm.passes.effects": ["Effect"],
        "pfvm.passes.view": ["constant"],
        "pfvm.passes.dims": ["same_dims"],
    },
    "Plans": {
        "pfvm.compiler.plan.planner": ["plan", "Plan"],
        "pfvm.compiler.plan.plan_options": ["PlanOptions"],
        "pfvm.compiler.plan.text": ["parse_l3ir", "format_l3ir", "L3Node", "L3Value"],
    },
    "Programs of the MLSDK": {"pfvm": ["Context"]},
    "Engines": {
        "pfvm.runtime.ort": ["OrtExecutable"],
        "pfvm.runtime.xla.executable": ["XlaExecutable"],
        "pfvm.runtime.emulator.executable": ["EmulatorExecutable"],
    },
    "Errors": {"pfvm.errors": None},
}


def on_startup(command: str, dirty: bool) -> None:
    """Lays the package out under its name, for the reader of docstrings: the repository's root has too much in it."""
    package = ROOT / ".build" / "docs_source" / "pfvm"
    package.mkdir(parents=True, exist_ok=True)
    for name in ("__init__.py", "errors.py", "compiler", "passes", "runtime"):
        (package / name).unlink(missing_ok=True)
        (package / name).symlink_to(ROOT / name)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The links of a page that is a file of docs/."""
    file = ROOT / "docs" / page.file.src_uri
    return linked(markdown, file.parent) if file.exists() else markdown


def pages() -> dict[str, str]:
    """File name → Markdown."""
    found = {name: linked(text) for name, text in readme_pages().items()}
    for source in ("CONTRIBUTING.md", "CHANGELOG.md"):
        found[source.lower()] = linked((ROOT / source).read_text(encoding="utf-8"))
    found["cli.md"] = "# Command line\n" + found["cli.md"].partition("\n")[2] + "\n" + command_line()
    found["compare.md"] = "---\nhide: [toc]\n---\n" + found["compare.md"]  # one table, which takes the room
    found["tour.md"] = tour()
    found["passes.md"] = passes()
    found["devices.md"] = devices()
    found["api.md"] = api()
    return found


# ---- README.md


def readme_pages() -> dict[str, str]:
    """The README's sections, each on its page; headings move up with it."""
    head, *sections = re.split(r"^(?=## )", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    found = {"index.md": head}
    for section in sections:
        page = SECTIONS.get(section.partition("\n")[0].removeprefix("## "), "index.md")
        if page in found:
            found[page] += section
        else:
            found[page] = section.removeprefix("#")
    missing = set(SECTIONS.values()) - found.keys()
    assert not missing, f"README.md has no section for {missing}"
    return found


def linked(text: str, folder: Path = ROOT) -> str:
    """Links of a file in that folder: to pictures and pages below docs/, and names of all other files."""
    pages_of = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
    pages_of |= {"examples/tour.py": "tour.md"}

    def link(match: re.Match[str]) -> str:
        picture, label, target, title = match.groups()
        if re.match(r"\w+:|#", target):
            return match[0]
        file = (folder / target.partition("#")[0]).resolve()
        if not file.exists():
            raise FileNotFoundError(f"a link to {target}, which does not exist")
        target = file.relative_to(ROOT).as_posix()
        if target.startswith("docs/"):
            return f"{picture}[{label}]({target.removeprefix('docs/')})"
        if target in pages_of:
            return f"[{label}]({pages_of[target]})"
        name = f"{target}::{title}" if title else target
        return f'<span data-file title="{html.escape(name)}">{label}</span>'

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)(?: \"([^\"]*)\")?\)", link, text)


# ---- the command line


def command_line() -> str:
    """Every command with its flags, as its --help says."""
    import typer.main

    sys.path.insert(0, str(ROOT))
    from pfvm.tools.cli import app
    from pfvm.tools.help import EXAMPLES, GROUPS

    group: Any = typer.main.get_command(app)
    lines: list[str] = []
    for title, names in GROUPS.items():
        lines.append(f"## {title}\n")
        for name in names:
            if name in group.commands:
                lines += _command(name, group.commands[name], EXAMPLES)
    return "\n".join(lines)


def _command(name: str, command: Any, examples: dict[str, tuple[str, ...]]) -> Iterator[str]:
    yield f"### pfvm {name}\n"
    yield (command.help or "").strip() + "\n"
    if hasattr(command, "commands"):
        for inner, each in command.commands.items():
            yield from _command(f"{name} {inner}", each, examples)
        return
    yield "```bash\n" + "\n".join(examples.get(name, ())) + "\n```\n"
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name in ("quiet", "help", "help_all"):
            continue
        named = ", ".join([*parameter.opts, *parameter.secondary_opts]) if parameter.param_type_name == "option" else ""
        default = "" if parameter.default in (None, False, [], ()) or parameter.required else f"{parameter.default}"
        text = (parameter.help or "").replace("|", "\\|")
        rows.append(f"| `{named or parameter.name}` | {text} | {f'`{default}`' if default else ''} |")
    if rows:
        yield "| | | default |\n|---|---|---|\n" + "\n".join(rows) + "\n"


# ---- the passes


def passes() -> str:
    """Every pass: what it does, before and after, its options, and the levels that run it."""
    from pfvm.passes import pipeline
    from pfvm.tools.listing import pass_entry, when

    lines = ["# Passes\n", "In the order in which they run, round after round until one changes nothing.", ""]
    lines += ["`-p NAME{option=value}` adds a pass or sets its options, `--disable NAME` leaves one out.", ""]
    for name in pipeline.REGISTRY:
        cls = pipeline.load(name)
        summary, _, rest = (cls.__doc__ or "").strip().partition("\n")
        lines += [f"## {name}\n", f"{summary}\n", f"Runs with: `{when(pass_entry(name))}`.\n"]
        lines += _prose_and_drawings(_dedented(rest))
        options = [
            f"| `{f.name}` | `{f.type}` | `{'required' if f.default is dataclasses.MISSING else f.default}` |"
            for f in dataclasses.fields(cls)
        ]
        if options:
            lines += ["", "| option | type | default |", "|---|---|---|", *options, ""]
    return "\n".join(lines)


def _dedented(text: str) -> str:
    import inspect

    return inspect.cleandoc("\n" + text)


def _prose_and_drawings(text: str) -> Iterator[str]:
    """Paragraphs of a docstring; one that is drawn in columns (before: … after: …) keeps its blanks."""
    for paragraph in re.split(r"\n\s*\n", text):
        is_drawn = re.search(r"^ |  |─|→", paragraph, re.MULTILINE) is not None
        yield f"```text\n{paragraph}\n```\n" if is_drawn else f"{paragraph}\n"


# ---- the devices


def devices() -> str:
    """Every device, with what it needs. Whether it is here is for `pfvm devices` to say."""
    from pfvm.runtime.backends import BACKENDS
    from pfvm.runtime.device import devices as known

    lines = ["# Devices\n", "`pfvm devices` says which are here, `pfvm doctor` whether they compute right.\n"]
    lines += ["| device | what it is | install | options of `pfvm.load` |", "|---|---|---|---|"]
    for device in known():
        needs = device.command or (f"pip install 'pfvm[{device.extra}]'" if device.extra else "")
        options = ", ".join(f"`{name}`" for name in BACKENDS[device.backend].options)
        lines.append(f"| `{device.name}` | {device.note} | {f'`{needs}`' if needs else 'the core'} | {options} |")
    lines += ["\nWhat the options mean: [pfvm.load](api.md#pfvm.load) and [the engines](api.md#engines).\n"]
    return "\n".join(lines)


# ---- the tour


def tour() -> str:
    """examples/tour.py: its comments between chapters and above code are prose, the rest is code."""
    text = (ROOT / "examples" / "tour.py").read_text(encoding="utf-8")
    docstring, _, body = text.removeprefix('"""').partition('"""\n')
    title, _, about = docstring.partition(". ")
    lines = [f"# {title}\n", f"{about.replace('python examples/tour.py', '`python examples/tour.py`')}\n"]
    preamble, *chapters = re.split(r"^# =+\n", body, flags=re.MULTILINE)
    lines += _code(preamble)
    for chapter in chapters:
        heading, _, rest = chapter.partition("\n#\n")
        lines.append(f"## {heading.removeprefix('# ')}\n")
        lines += _code(rest)
    return "\n".join(lines)


def _code(text: str) -> Iterator[str]:
    """Blocks of Python, and the comments at the margin between them as paragraphs."""
    for part in re.split(r"((?:^# .+\n)+)", text, flags=re.MULTILINE):
        if part.startswith("# "):
            yield re.sub(r"^# ", "", part, flags=re.MULTILINE)
        elif part.strip():
            yield f"```python\n{part.strip()}\n```\n"


# ---- Python


def api() -> str:
    """What users may import, from its docstrings."""
    lines = ["# Python\n", "What is a name of `pfvm` itself is loaded when it is first used.\n"]
    for title, modules in API.items():
        lines.append(f"## {title}\n")
        for module, names in modules.items():
            lines += [f"::: {module}.{name}\n" for name in names or _defined(module)]
    return "\n".join(lines)


def _defined(module: str) -> list[str]:
    loaded = importlib.import_module(module)
    is_own: Callable[[Any], bool] = lambda value: getattr(value, "__module__", None) == module  # noqa: E731
    return [name for name, value in vars(loaded).items() if is_own(value) and not name.startswith("_")]

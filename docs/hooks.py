"""MkDocs hook: the pages that are generated from the code, and the changelog.

The pages exist only in the built site; nothing is written to `docs/`.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from beamtree import cli
from beamtree.models import pretrained, storage
from beamtree.runs import recipes, settings

ROOT = Path(__file__).parents[1]
SECTIONS = settings._SECTIONS
SHOWN_RECIPES = ("listops", "text")  # whose values the table of settings has
EVERY_COMMAND = ("--help", "--install-completion", "--show-completion")  # options that are left out of the tables


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages to the site. Called by MkDocs."""
    for path, make in PAGES.items():
        files.append(File.generated(config, path, content=make()))
    return files


def command_line() -> str:
    """The page of the command line: every command with its arguments, options and defaults."""
    program: Any = typer.main.get_command(cli.app)
    context = program.context_class(program, info_name="beamtree")
    commands = {name: cli.load_command(name) for name in cli.COMMANDS}
    links = [[f"[`beamtree {name}`](#beamtree-{name})", text] for name, text in cli.COMMANDS.items()]
    sections = [
        "# Command line",
        "`beamtree COMMAND --help` prints the same text. `beamtree --version` prints the version, and "
        "`beamtree --install-completion` installs completion for the current shell.",
        table(("command", "description"), links),
        *(part for name, command in commands.items() for part in command_sections(command, name, context, level=2)),
    ]
    return "\n\n".join(sections) + "\n"


def command_sections(command: Any, name: str, parent: Any, level: int) -> Iterator[str]:
    """Heading, description, usage, examples and tables of a command, then those of its subcommands."""
    context = command.context_class(command, info_name=name, parent=parent)
    params = [param for param in command.get_params(context) if param.opts[0] not in EVERY_COMMAND]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [param for param in params if param.param_type_name == "option"]
    yield f"{'#' * level} beamtree {context.command_path.partition(' ')[2]}"
    yield escape(command.help)
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```"
    if arguments:
        rows = [[code(param.metavar or param.name.upper()), escape(param.help), default(param)] for param in arguments]
        yield table(("argument", "description", "default"), rows)
    if options:
        rows = [[names(param, context), escape(param.help), default(param)] for param in options]
        yield table(("option", "description", "default"), rows)
    if command.epilog:
        about, *examples = (line.strip().rstrip(":") for line in command.epilog.split("\n\n"))
        yield f"{escape(about)}:\n\n```text\n" + "\n".join(examples) + "\n```"
    for each, subcommand in getattr(command, "commands", {}).items():
        yield from command_sections(subcommand, each, context, level + 1)


def names(param: Any, context: Any) -> str:
    """The spellings of an option and the kind of its value: `--seed` `INT`."""
    spelling = code(", ".join((*param.opts, *param.secondary_opts)))
    if param.is_flag:
        return spelling
    value = param.display_type_rich(context).strip("<>").replace("\n", "")
    return f"{spelling} `{value.upper() if value.isalpha() else value}`"


def default(param: Any) -> str:
    """The default of a parameter as the help has it; a dash if there is none."""
    if param.required:
        return "required"
    if isinstance(param.show_default, str):  # words in place of the value, or the value as text
        return escape(param.show_default)
    if not param.show_default or param.default in (None, []):
        return "–"
    if isinstance(param.default, bool):
        return ("on" if param.default else "off") if param.secondary_opts else "–"
    return code(str(param.default))


def settings_page() -> str:
    """The page of settings: every key with its type, its meaning and its value in two recipes."""
    schema = settings.Settings.model_json_schema()
    groups: dict[str, Any] = {"": schema} | {name: schema["$defs"][kind.__name__] for name, kind in SECTIONS.items()}
    values = {name: recipe_values(name) for name in SHOWN_RECIPES}
    sections = [
        "# Settings",
        "A run has one value for every setting. A [recipe](../guides/training.md#recipes) holds the values for a data "
        "set; `--set KEY=VALUE` and `beamtree.runs.recipes.load(…, changes={KEY: VALUE})` change single ones, and the "
        "file `config.yaml` of a run has all of them. `beamtree train --schema` prints the JSON Schema of a recipe "
        "file, for editors. There are no defaults other than those of a recipe: the last columns have the values of "
        "two of them, for `bt-grc`.",
    ]
    for name, group in groups.items():
        fields = {key: field for key, field in group["properties"].items() if key not in SECTIONS}
        rows = []
        for key, field in fields.items():
            full = f"{name}.{key}" if name else key
            shown = (f"`{values[recipe][full]}`" if full in values[recipe] else "–" for recipe in SHOWN_RECIPES)
            rows.append([code(full), escape(field["description"]), settings._in_words(field), *shown])
        sections += [f"## {name or 'The run'}", escape(group["description"])]
        sections.append(table(("key", "meaning", "value", *(f"`{recipe}`" for recipe in SHOWN_RECIPES)), rows))
    return "\n\n".join(sections) + "\n"


def recipe_values(recipe: str) -> dict[str, str]:
    """The values of a recipe by their keys, as its file spells them."""
    text = (Path(recipes.__file__).parent / f"{recipe}.yaml").read_text(encoding="utf-8")
    document = yaml.load(text, yaml.BaseLoader)
    chosen = {"name": document["encoder"], **document["encoders"][document["encoder"]]}
    groups = {**{name: document[name] for name in SECTIONS if name != "encoder"}, "encoder": chosen}
    flat = {f"{name}.{key}": value for name, group in groups.items() for key, value in group.items()}
    plain = {key: value if isinstance(value, str) else inline(value) for key, value in flat.items()}
    return {"recipe": recipe, "seed": "0", **plain}


def inline(value: Any) -> str:
    """A list or a mapping as one line of YAML."""
    return yaml.dump(value, default_flow_style=True, width=10_000).strip().replace("'", "")


def models_page() -> str:
    """The page of shipped models: their cards, one after the other."""
    cards = [(pretrained.shipped_folder(name) / storage.CARD).read_text("utf-8") for name in pretrained.shipped()]
    about = (
        "# Trained models\n\nThese models come with the package. `beamtree.load(NAME)` loads one "
        "([a first model](start/first-model.md)), `beamtree models NAME` prints its card."
    )
    return "\n\n".join((about, *(re.sub(r"^#(?=#* )", "##", card, flags=re.MULTILINE) for card in cards)))


def changelog() -> str:
    """CHANGELOG.md with links that work on the site, whose pages are not in `docs/`."""
    return re.sub(r"\]\(docs/", "](", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def table(header: tuple[str, ...], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(' '.join(cell.split()) for cell in line)} |" for line in lines)


def code(text: str) -> str:
    """Code that is never broken into two lines."""
    return f"`{text}`"


def escape(text: str | None) -> str:
    """Plain text in which Markdown finds no markup."""
    return re.sub(r"([|<>*_\[\]])", r"\\\1", text or "")


PAGES = {
    "models.md": models_page,
    "reference/command-line.md": command_line,
    "reference/settings.md": settings_page,
    "changelog.md": changelog,
}

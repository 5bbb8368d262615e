"""Links, index and runnable code blocks of the documentation (`marked_blocks.py`)."""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from marked_blocks import MARKED_BLOCK, follow, with_programs
from programs import ROOT, program

FENCED_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages():
    """Returns all Markdown files of the repository outside of the target directory."""
    folders = [ROOT / name for name in ("docs", "examples", "crates", "python", "xtask")]
    return [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]


def anchors(page):
    """Returns the anchors of the headings of a page, as GitHub and MkDocs name them."""
    headings = HEADING.findall(FENCED_BLOCK.sub("", page.read_text()))
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in plain}


def broken_links(page):
    """Returns the relative links of a page whose file or heading does not exist."""
    broken = []
    for link in LINK.findall(FENCED_BLOCK.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        is_page = target.suffix == ".md" and target.is_file()
        if not target.exists() or (anchor and is_page and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_relative_links_and_anchors_exist():
    found = {str(page.relative_to(ROOT)): broken_links(page) for page in pages()}
    assert {page: links for page, links in found.items() if links} == {}


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# One `two`\n[a](#one-two) [b](#three) [c](gone.md) [d](page.md#one-two)\n")
    assert broken_links(page) == ["#three", "gone.md"]


def test_every_page_is_in_the_site_and_in_the_index():
    site = (ROOT / "mkdocs.yml").read_text()
    index = (ROOT / "docs/README.md").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(ROOT)}\n" in site, "the page is missing in mkdocs.yml"
        if page.name != "README.md":
            link = page.relative_to(ROOT / "docs")
            assert f"({link})" in index, "the page is missing in docs/README.md"


def marked_pages():
    return [page for page in pages() if MARKED_BLOCK.search(page.read_text())]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", marked_pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_marked_blocks_run(page, tmp_path):
    programs = pathlib.Path(program("ROLLWAY_BIN")).parent
    environment = with_programs(
        programs,
        pathlib.Path(sys.executable).parent,
        PYTHONPATH=str(tmp_path),
        ROLLWAY_PYTHON=sys.executable,
        ROLLWAY_ROOT=str(ROOT),
    )
    follow(page, tmp_path, environment)


def test_cli_reference_is_the_help_of_the_command():
    compare_with_page("docs/cli.md", cli_reference())


def test_http_reference_is_the_openapi_document():
    compare_with_page("docs/http-api.md", http_reference())


def compare_with_page(path, generated):
    """Compares a generated page. `UPDATE_EXPECT=1` writes it again."""
    page = ROOT / path
    if os.environ.get("UPDATE_EXPECT"):
        page.write_text(generated)
    assert page.read_text() == generated, f"{path} is out of date: set UPDATE_EXPECT=1"


def cli_reference():
    """Returns the page with the help of every subcommand."""
    commands = re.findall(r"^  ([a-z-]+) +[A-Z]", command_help(), re.MULTILINE)
    sections = [
        "# Command line\n\nGenerated from the help of the command: `UPDATE_EXPECT=1` before the"
        " test\n`python/tests/test_docs.py` writes this page again. [Running a job](run.md)"
        " describes exit codes and files.\n",
        f"```text\n{command_help()}```\n",
    ]
    for name in commands:
        if name != "help":
            sections.append(f"## rollway {name}\n\n```text\n{command_help(name)}```\n")
    return "\n".join(sections)


def command_help(*names):
    done = subprocess.run(
        [program("ROLLWAY_BIN"), *names, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


#: Headings of the tags of the OpenAPI document.
HTTP_TAGS = {
    "calls": "Model calls",
    "models": "Models and servers",
    "runs": "Runs",
    "serve": "Serve mode",
    "monitoring": "Monitoring",
}


def http_reference():
    """Returns the page with the endpoints of the gateway."""
    document = json.loads((ROOT / "crates/gateway/src/http/openapi.json").read_text())
    endpoints = [
        (f"{method.upper()} {path}", operation)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    lines = [
        "# HTTP API of the gateway",
        "",
        "Generated from the OpenAPI document that the gateway serves at `GET /openapi.json`:",
        "`UPDATE_EXPECT=1` before the test `python/tests/test_docs.py` writes this page again.",
        "[gateway.md](gateway.md) describes keys, guarantees, errors and limits.",
        "Model calls may have further fields, which are forwarded to the server.",
    ]
    for tag, heading in HTTP_TAGS.items():
        lines += ["", f"## {heading}"]
        for name, operation in endpoints:
            if tag in operation["tags"]:
                lines += ["", f"### `{name}`", "", *http_endpoint(document, operation)]
    return "\n".join(lines) + "\n"


def http_endpoint(document, operation):
    """Returns the lines of one endpoint."""
    lines = [f"{operation['summary']}."]
    rows = []
    for parameter in operation.get("parameters", []):
        rows.append(
            (parameter["name"], parameter["in"], parameter["required"], parameter["schema"])
        )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema = resolved(document, body.get("schema", {}))
    for name, field in schema.get("properties", {}).items():
        rows.append((name, "body", name in schema.get("required", []), resolved(document, field)))
    rows.sort(key=lambda row: not row[2])
    if rows:
        lines += ["", "| name | in | type | required | default |", "|---|---|---|---|---|"]
    for name, place, required, field in rows:
        default = json.dumps(field["default"]) if "default" in field else ""
        about = f": {field['description']}" if "description" in field else ""
        mark = "yes" if required else ""
        lines.append(
            f"| `{name}` | {place} | {type_name(document, field)}{about} | {mark} | {default} |"
        )
    lines += ["", "| status | response |", "|---|---|"]
    for status, response in operation["responses"].items():
        kinds = ", ".join(f"`{kind}`" for kind in response.get("content", {}))
        number = "other" if status == "default" else status
        lines.append(f"| {number} | {response['description']}: {kinds} |")
    return lines


def resolved(document, schema):
    """Returns a schema, or the one that it refers to."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def type_name(document, schema):
    """Returns the type of a value in words."""
    schema = resolved(document, schema)
    if "oneOf" in schema:
        return " or ".join(type_name(document, one) for one in schema["oneOf"])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kinds = schema.get("type", "any")
    names = [kinds] if isinstance(kinds, str) else kinds
    if names == ["array"]:
        return f"list of {type_name(document, schema.get('items', {}))}"
    return " or ".join(names)

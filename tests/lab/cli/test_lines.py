import io

from rich.console import Console

from leanbayes.lab.cli.lines import print_line

TEXT = f"leanbayes: [bold] is no markup, and the path {'a' * 50}/b-c stays whole where lines end between words"


def test_a_terminal_breaks_lines_between_words() -> None:
    console = Console(width=40, file=io.StringIO(), force_terminal=True)
    print_line(console, TEXT)
    lines = console.file.getvalue().splitlines()
    assert " ".join(lines) == TEXT
    assert [line for line in lines if len(line) > 40] == [f"{'a' * 50}/b-c"]


def test_a_file_has_one_line() -> None:
    console = Console(width=40, file=io.StringIO(), force_terminal=False)
    print_line(console, TEXT)
    assert console.file.getvalue() == f"{TEXT}\n"

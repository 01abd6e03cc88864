import re

from polydice.studies.formats import Cell, Table, latex, markdown, terminal

SPITEFUL = r"<script>alert(1)</script> | 50 % of $x_1$ & {a} ~ ^ # \ *b* `c` [d](e)"


def test_a_terminal_has_the_columns_that_fit() -> None:
    rows = (("Dice", "79.31 ± 4.69", "", "6 of 6"), ("Focal Tversky", "80.93", "+1.62 [0.1, 3.2]", "6 of 6"))
    table = Table("mine, unet", ("Loss", "Dice", "Difference", "Runs"), tuple(tuple(map(Cell, row)) for row in rows))
    assert terminal(table) == (
        "mine, unet\n"
        "Loss           Dice          Difference        Runs\n"
        "Dice           79.31 ± 4.69                    6 of 6\n"
        "Focal Tversky  80.93         +1.62 [0.1, 3.2]  6 of 6\n"
    )
    assert terminal(table, 53) == terminal(table)
    assert terminal(table, 52).splitlines()[1:] == [
        "Loss           Dice          Runs",
        "Dice           79.31 ± 4.69  6 of 6",
        "Focal Tversky  80.93         6 of 6",
    ]
    assert [line.split()[-1] for line in terminal(table, 5).splitlines()[1:]] == ["Runs", "6", "6"]


def test_names_stay_text_in_markdown_and_latex() -> None:
    table = Table(SPITEFUL, ("Loss", SPITEFUL), ((Cell(SPITEFUL), Cell("1.00 ± 0.10", 1.0, bold=True)),))
    lines = markdown(table).splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines[2:]}) == 1, "as many columns in every line"
    assert not re.search(r"(?<!\\)([<>`*]|\]\()", "".join(lines).replace("**1.00 ± 0.10**", ""))
    written = latex(table)
    assert r"\textbf{1.00 $\pm$ 0.10}" in written
    body = re.sub(r"\\[&%$#_{}]", "", written)  # what is escaped is out of the game
    assert body.count("&") == 2, "one between the columns of each row"
    assert "%" not in body
    assert "#" not in body
    assert body.count("{") == body.count("}")
    assert body.count("$") % 2 == 0

import re

import pytest

from loadgen.page import Cell, Chooser, Page, Section, bullets, card, details, render, table

FIGURE = {"data": [{"x": ["</script><b>"]}], "layout": {"title": "f"}}


def page(*sections, contents=False):
    return render(Page("t", "<h1>top</h1>", sections, "abc", contents), "var Plotly;")


def test_what_a_reader_sees_is_escaped_everywhere():
    evil = "<img src=x>"
    made = [
        table([evil], [[evil], [Cell(evil, "words")]]),
        bullets([evil]),
        details(evil, ""),
        card(evil, Cell(evil), [(evil, [evil])]),
        page(Section(evil, "", [Chooser(evil, {"": FIGURE}, [(evil, [evil])], note=evil)])),
    ]
    assert all("<img" not in html and "&lt;img" in html for html in made)


def test_no_text_of_a_figure_ends_the_script_that_holds_it():
    html = page(Section("s", "", [Chooser("c", {"": FIGURE})]))
    assert html.count("</script>") == 3
    assert "</script><b>" not in html


def test_a_heading_over_words_stands_on_the_left_as_they_do():
    assert '<th class="words">b</th>' in table(["a", "b"], [["1", Cell("x", "pass words")]])
    assert "<th>a</th>" in table(["a", "b"], [["1", "2"]])


def test_rows_that_stand_as_blocks_on_a_phone_bear_their_headings():
    assert '<td data-head="a">1</td>' in table(["a"], [["1"]], stacked=True)
    words = table(["a", "b"], [["1", Cell("x", "words")]])
    assert 'class="stacked"' in words
    assert '<td class="words" data-head="b">x</td>' in words
    assert "data-head" not in table(["a"], [["1"]])


def test_every_choice_leads_to_the_figure_of_its_name_and_starts_where_it_is_told():
    axes = [("show", ["p", "q"]), ("at", ["r", "s"])]
    chooser = Chooser("c", {"p|r": FIGURE, "q|s": FIGURE}, axes, start=["q", "s"])
    html = page(Section("s", "", [chooser]))
    assert re.findall(r"<option selected>(\w)</option>", html) == ["q", "s"]
    assert html.count('data-of="f0"') == 2


def test_figures_are_numbered_through_all_sections():
    html = page(*(Section("s", "", [Chooser("c", {"": FIGURE})]) for _ in range(3)))
    assert re.findall(r'id="(f\d)"', html) == ["f0", "f1", "f2"]


@pytest.mark.parametrize("contents", [True, False])
def test_the_contents_link_to_every_section_where_they_are_wanted(contents):
    html = page(Section("Two words"), Section("Other"), contents=contents)
    for anchor in ("s-two-words", "s-other"):
        assert f'<h2 id="{anchor}">' in html
        assert (f'href="#{anchor}"' in html) is contents


def test_no_heading_takes_a_name_that_the_script_looks_for():
    html = page(Section("Figures", "", [Chooser("c", {"": FIGURE})]), Section("f0"))
    names = re.findall(r'id="([^"]+)"', html)
    assert len(names) == len(set(names)) == 4


def test_nothing_is_fetched():
    html = page(Section("s", table(["a"], [["1"]]), [Chooser("c", {"": FIGURE})]))
    assert not re.search(r"<(script|img|iframe|source)[^>]+src=|<link|@import|url\(|https?:", html)


def test_a_second_column_of_figures_stands_on_the_right_and_one_of_words_on_the_left():
    figures = table(["a", "b"], [["x", "18"], ["y", "4.2 s → 3 s"], ["z", "–"]])
    assert '<td class="figure">18</td>' in figures
    assert '<th class="figure">b</th>' in figures
    assert "<td>50-50 low</td>" in table(["a", "b"], [["x", "50-50 low"], ["y", "18"]])

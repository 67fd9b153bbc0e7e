import re

from loadgen.files import file_digest
from loadgen.report_file import plotly_source, write_report


def test_the_report_is_one_file_with_its_plotting_library_inside(demo):
    page = (demo[0] / "report.html").read_text(encoding="utf-8")
    assert len(page) > 3_000_000
    # The page's own part: the library's source mentions tags in its strings.
    own = page.replace(plotly_source(), "")
    assert not re.search(r"<script[^>]+src=|<link|https?://", own)
    assert file_digest(demo[0] / "analysis.json") in own


def test_writing_the_report_again_gives_the_same_bytes(demo):
    before = file_digest(demo[0] / "report.html")
    assert file_digest(write_report(demo[0])) == before

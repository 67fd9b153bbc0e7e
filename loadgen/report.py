"""Writes one self-contained HTML page: verdict first, then tables, figures and how to redo it.

Everything is inline, the plotting library too; the page asks nothing of any network. It holds
hashes and numbers, never prompt text. Pure: no I/O, no clock.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import orjson

from loadgen.charts import dispatch_lag, distribution, oldest_age, predictions, queue_depth
from loadgen.record import RequestRecord
from loadgen.tables import COLUMNS, change_lines, pool_lines, rows, verdict_line

__all__ = ["Evidence", "render_report"]

Json = Mapping[str, Any]
Evidence = Sequence[tuple[str, Sequence[RequestRecord], Sequence[Json]]]
LAG_LIMIT_MS = 50.0

STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#5b6570;--line:#d6dbe1;--card:#f5f7f9;--bad:#b42318;--warn:#8a5a00}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e9ec;--dim:#9aa4ae;--line:#333a41;
--card:#1d2125;--bad:#ff8a7a;--warn:#f0b849}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:20px 16px 60px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.1rem;margin:2em 0 .5em}
h3{font-size:.95rem;margin:1.4em 0 0}
.verdict{border-left:5px solid var(--warn);background:var(--card);padding:12px 16px;
border-radius:4px}
.verdict b{font-size:1.25rem}.bad{color:var(--bad)}.dim{color:var(--dim)}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:4px}
table{border-collapse:collapse;width:100%;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{padding:6px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th{color:var(--dim);font-weight:600}tr:last-child td{border-bottom:0}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}
td:first-child,th:first-child{position:sticky;left:0;background:var(--bg)}
code,pre{font:.84rem/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
pre{background:var(--card);padding:10px 12px;border-radius:4px;white-space:pre-wrap}
.chart{margin:4px 0 18px;max-width:100%;overflow:hidden;min-height:380px}
@media(max-width:600px){body{padding:12px 12px 40px;font-size:15px}
td:first-child,th:first-child{white-space:normal;min-width:7.5em}}
"""
SCRIPT = """
const dark=matchMedia('(prefers-color-scheme: dark)');
function theme(){const d=dark.matches,fg=d?'#e6e9ec':'#1b1f24',grid=d?'#333a41':'#dfe3e8';
return {'font.color':fg,'xaxis.gridcolor':grid,'yaxis.gridcolor':grid,'xaxis.zerolinecolor':grid,
'yaxis.zerolinecolor':grid,'xaxis.linecolor':grid,'yaxis.linecolor':grid};}
const figures=JSON.parse(document.getElementById('figures').textContent);
figures.forEach((f,i)=>{const el=document.getElementById('f'+i);
Plotly.newPlot(el,f.data,f.layout,{responsive:true,displaylogo:false,displayModeBar:false})
.then(()=>Plotly.relayout(el,theme()));});
new ResizeObserver(()=>figures.forEach((f,i)=>
Plotly.Plots.resize(document.getElementById('f'+i)))).observe(document.body);
dark.addEventListener('change',()=>figures.forEach((f,i)=>
Plotly.relayout(document.getElementById('f'+i),theme())));
"""


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    top = "".join(f"<th>{escape(h)}</th>" for h in head)
    lines = ("".join(f"<td>{escape(v)}</td>" for v in row) for row in body)
    inner = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{inner}</tbody></table></div>"
    )


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _prediction_rows(analysis: Json) -> list[tuple[str, float, float]]:
    told, found = analysis.get("predictions", {}), []
    for run in analysis["runs"]:
        for name, figures in run["classes"].items():
            predicted = told.get(run["name"], {}).get(name, {}).get("ttft_p95_s")
            measured = figures["ttft_s"]["offered"]["p95"].get("value")
            if predicted is not None and measured is not None:
                found.append((f"{run['label']}, {name}", predicted, measured))
    return found


def _figures(analysis: Json, evidence: Evidence) -> list[Json]:
    records = [(label, own) for label, own, _ in evidence]
    samples = [(label, own) for label, _, own in evidence]
    limits = analysis["contract"]
    names = analysis["class_order"]
    figures: list[Json] = [distribution(records, n, limits[n]["ttft_s"]) for n in names]
    figures += [oldest_age(samples), queue_depth(samples), dispatch_lag(samples, LAG_LIMIT_MS)]
    if told := _prediction_rows(analysis):
        figures.append(predictions(told))
    return figures


def _invalid(analysis: Json) -> str:
    faults = [f"{r['label']}: {fault}" for r in analysis["runs"] for fault in r["faults"]]
    if not faults:
        return "<p>No run was invalid: the client kept its schedule in each.</p>"
    return f'<div class="bad">{_list(faults)}</div>'


def _equalities(analysis: Json) -> list[str]:
    return [
        f"{r['label']}: prompt tokens equal to plan: {r['prompt_tokens']['equal']} of "
        f"{r['prompt_tokens']['of']}; dispatch lag p99 {r['dispatch_lag_ms']['p99']:.2f} ms"
        for r in analysis["runs"]
    ]


def _contract(analysis: Json) -> str:
    head = ("class", "TTFT", "max stall", "e2e", "attainment", "valid by")
    body = [
        (
            name,
            *(f"{limits[k]} s" for k in ("ttft_s", "max_stall_s", "e2e_s")),
            f"{limits['attainment']:.0%}",
            limits["validator"],
        )
        for name, limits in analysis["contract"].items()
    ]
    return _table(head, body)


def _head(analysis: Json, decision: Json) -> str:
    intervals = analysis["intervals"]
    about = (
        f"{analysis['rate_per_s']:.1f} requests/s open loop, {intervals['ramp_s']:g} s ramp, "
        f"{intervals['window_s']:g} s window, drain at most {intervals['drain_s']:g} s. Latency "
        "counts from the planned arrival; a request that is not ok counts as unbounded."
    )
    return (
        f"<h1>Admission and isolation, one trace</h1>"
        f'<div class="verdict"><b>{escape(verdict_line(decision))}</b>'
        f"{_list(decision['reasons'])}<div>Action: {escape(decision['action'])}. "
        f"Deployable: {'yes' if decision['deployable'] else 'no'}.</div></div>"
        f'<p class="dim">{escape(about)}</p>'
    )


def _digests(decision: Json) -> str:
    text = orjson.dumps(decision["inputs"], option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS)
    shown = f"<pre>{escape(text.decode())}</pre>"
    return f"<details><summary>SHA-256 of every input</summary>{shown}</details>"


def _safe_json(value: object) -> str:
    # A closing tag inside a JSON string would end the script element.
    return orjson.dumps(value).decode().replace("<", "\\u003c")


def render_report(analysis: Json, decision: Json, evidence: Evidence, plotly_js: str) -> str:
    """Return the page.

    Args:
        analysis: of the folder.
        decision: that rests on it.
        evidence: per run its label, records and samples, for the figures.
        plotly_js: the plotting library's source.
    """
    figures = _figures(analysis, evidence)
    holders = "".join(
        f'<h3>{escape(f["layout"]["meta"]["title"])}</h3><div class="chart" id="f{n}"></div>'
        for n, f in enumerate(figures)
    )
    sections = (
        ("Each way and class", _table(COLUMNS, rows(analysis))),
        ("Change against the first way", _list(change_lines(analysis))),
        ("Offered work of each pool", _list(pool_lines(analysis))),
        ("Figures", holders),
        ("What was invalid", _invalid(analysis)),
        ("Checks", _list(_equalities(analysis))),
        ("Contract, fixed before the runs", _contract(analysis)),
        (
            "How to reproduce",
            "<pre>make demo\nsluicegate bench verify out/demo</pre>" + _digests(decision),
        ),
    )
    body = "".join(f"<h2>{title}</h2>{content}" for title, content in sections)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="analysis-sha256" content="{decision["inputs"]["analysis_sha256"]}">'
        f"<title>Sluicegate: {escape(decision['verdict'])}</title><style>{STYLE}</style></head>"
        f"<body>{_head(analysis, decision)}{body}"
        f'<script type="application/json" id="figures">{_safe_json(figures)}</script>'
        f"<script>{plotly_js}</script><script>{SCRIPT}</script></body></html>\n"
    )

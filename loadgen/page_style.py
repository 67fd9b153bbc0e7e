"""Holds how the page looks and how its figures are drawn: the style sheet and the script.

A figure is drawn anew when another is chosen; texts and grid take their colours from the page.
Pure: no I/O, no clock.
"""

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#56606b;--line:#d6dbe1;--card:#f5f7f9;--bad:#b42318;
--warn:#8a5a00;--good:#1a6b3c;--link:#0b5cad}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--fg:#e6e9ec;--dim:#a3adb7;--line:#333a41;
--card:#1d2125;--bad:#ff8a7a;--warn:#f0b849;--good:#6fd39a;--link:#7db7f5}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:20px 16px 60px;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}
h1{font-size:1.35rem;margin:.2em 0}h2{font-size:1.15rem;margin:2.2em 0 .5em;scroll-margin-top:1em}
h3{font-size:1rem;margin:1.4em 0 .2em}p{max-width:80ch;margin:.4em 0}li{max-width:90ch}
ul{margin:.4em 0;padding-left:1.2em}a{color:var(--link)}
.verdict{border-left:5px solid var(--warn);background:var(--card);padding:12px 16px;
border-radius:4px}.verdict.good{border-color:var(--good)}.verdict.stop{border-color:var(--bad)}
.verdict b{font-size:1.25rem}.verdict td:first-child,.verdict th:first-child{background:var(--card)}
.bad{color:var(--bad)}.dim{color:var(--dim)}
.stamp{border:1px solid var(--warn);color:var(--warn);border-radius:4px;padding:6px 12px;
margin:.8em 0}
nav{display:flex;flex-wrap:wrap;gap:4px 14px;margin:1em 0;font-size:.92rem}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:4px;margin:.5em 0}
table{border-collapse:collapse;width:100%;font-size:.83rem;font-variant-numeric:tabular-nums}
th,td{padding:6px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line);
vertical-align:top}
th{color:var(--dim);font-weight:600}tr:last-child td{border-bottom:0}
td:first-child,th:first-child,td:nth-child(2),th:nth-child(2){text-align:left}
td.figure,th.figure{text-align:right}
td:first-child,th:first-child{text-align:left;position:sticky;left:0;background:var(--bg)}
td.words,th.words{text-align:left}td.words{white-space:pre-line;min-width:15em;
overflow-wrap:anywhere}
td.pass{color:var(--good)}td.fail{color:var(--bad)}td.open{color:var(--warn)}td.dim{color:var(--dim)}
code,pre{font:.84rem/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
pre{background:var(--card);padding:10px 12px;border-radius:4px;white-space:pre-wrap}
details{margin:.5em 0}summary{cursor:pointer;padding:4px 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 16px}dt{font-weight:600}dd{margin:0;
max-width:80ch}
.card{border:1px solid var(--line);border-radius:4px;padding:10px 14px;margin:.6em 0}
.card h3{margin:0 0 .3em}.card>div{display:grid;gap:4px 20px;
grid-template-columns:repeat(auto-fit,minmax(230px,1fr));font-size:.9rem}
.card h4{margin:.2em 0;color:var(--dim);font-size:.86rem}
.tag{font-size:.86rem;font-weight:400;margin-left:.5em}.tag.fail{color:var(--bad)}
.tag.pass{color:var(--good)}.tag.open{color:var(--warn)}
.chart{margin:4px 0 18px;max-width:100%;overflow:hidden;min-height:380px}
.picks{display:flex;flex-wrap:wrap;gap:6px 16px;margin:.3em 0;font-size:.92rem}
select{font:inherit;color:inherit;background:var(--card);border:1px solid var(--line);
border-radius:4px;padding:4px 6px;max-width:100%}
@media(max-width:600px){body{padding:12px 12px 40px}dl{grid-template-columns:1fr}
dd{margin-bottom:.5em}td:first-child,th:first-child{white-space:normal;max-width:8.5em}
td.words{min-width:13em}
table.stacked thead{display:none}table.stacked,table.stacked tbody{display:block}
table.stacked tr{display:block;padding:6px 0;border-bottom:1px solid var(--line)}
table.stacked tr:last-child{border-bottom:0}
table.stacked td{display:grid;grid-template-columns:7.5em 1fr;gap:8px;text-align:left;border:0;
padding:2px 8px;white-space:pre-line;min-width:0;max-width:none;position:static}
table.stacked td::before{content:attr(data-head);color:var(--dim)}
table.stacked td:first-child{font-weight:600}}
@media print{nav,.picks{display:none}.scroll{overflow:visible}}
"""
SCRIPT = """
const dark=matchMedia('(prefers-color-scheme: dark)');
function theme(l){const d=dark.matches,fg=d?'#e6e9ec':'#1b1f24',grid=d?'#333a41':'#dfe3e8';
const own={font:{...(l.font||{}),color:fg}};
for(const a of Object.keys(l).filter(k=>/^[xy]axis/.test(k)))
own[a]={...l[a],gridcolor:grid,zerolinecolor:grid,linecolor:grid};return {...l,...own};}
const figures=JSON.parse(document.getElementById('figures').textContent);
const drawn=new Set();
function draw(i){const el=document.getElementById('f'+i);
const key=[...document.querySelectorAll('select[data-of="f'+i+'"]')].map(s=>s.value).join('|');
const f=figures[i][key];drawn.add(i);
if(!f){Plotly.purge(el);el.textContent='Not measured for this choice.';return;}
if(!el.querySelector('.plot-container'))el.textContent='';
const narrow=el.clientWidth<600,l=theme(f.layout);
if(narrow&&l.margin)l.margin={...l.margin,l:Math.min(l.margin.l,48),r:4};
Plotly.react(el,f.data,l,{responsive:true,displaylogo:false,displayModeBar:false});}
figures.forEach((f,i)=>{setTimeout(()=>draw(i));
document.querySelectorAll('select[data-of="f'+i+'"]').forEach(s=>
s.addEventListener('change',()=>draw(i)));});
new ResizeObserver(()=>drawn.forEach(i=>{const el=document.getElementById('f'+i);
if(el.querySelector('.plot-container'))Plotly.Plots.resize(el);})).observe(document.body);
dark.addEventListener('change',()=>drawn.forEach(draw));
"""

"""The style sheet of reports, for light and dark screens."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfaf7; --card: #ffffff; --ink: #1f2430; --soft: #5d6573;
  --line: #e4e1d8; --accent: #1b7f5f; --wash: #eaf5f0; --code: #f3f1ea;
  --alert: #9a5b00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171c; --card: #1b1f26; --ink: #e7e9ee; --soft: #a0a8b6;
    --line: #2c323c; --accent: #56c79f; --wash: #1b2f29; --code: #11141a;
    --alert: #e5b567;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans",
    Helvetica, Arial, sans-serif;
  -webkit-font-smoothing: antialiased;
}
main { max-width: 64rem; margin: 0 auto; padding: 3.5rem 1.5rem 5rem; }
header { margin-bottom: 2.25rem; }
.eyebrow {
  margin: 0 0 .35rem; color: var(--accent); font-size: .78rem;
  font-weight: 650; letter-spacing: .09em; text-transform: uppercase;
}
h1 { margin: 0; max-width: 46rem; font-size: 1.75rem; line-height: 1.3;
  letter-spacing: -.015em; overflow-wrap: anywhere; }
h2 { margin: 0 0 1rem; font-size: 1.15rem; letter-spacing: -.01em; }
.lead { margin: .9rem 0 0; max-width: 46rem; color: var(--soft);
  font-size: 1.08rem; }
.warning { margin: .9rem 0 0; color: var(--alert); font-weight: 560; }
section {
  margin: 0 0 1.25rem; padding: 1.6rem 1.75rem; background: var(--card);
  border: 1px solid var(--line); border-radius: 14px;
}
.scroll { overflow-x: auto; }
table { width: 100%; border-collapse: collapse;
  font-variant-numeric: tabular-nums; }
th { padding: .35rem .75rem .6rem; color: var(--soft); font-size: .8rem;
  font-weight: 550; text-align: right; white-space: nowrap; }
td { padding: .6rem .75rem; border-top: 1px solid var(--line);
  text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child { font-weight: 600; }
td.best { color: var(--accent); font-weight: 680; }
tr.winner td { background: var(--wash); }
tr.winner td:first-child { border-radius: 8px 0 0 8px; }
tr.winner td:last-child { border-radius: 0 8px 8px 0; }
.note { margin: 1rem 0 0; color: var(--soft); font-size: .9rem; }
figure { margin: 0; }
.panels { display: grid; gap: 1rem 1.5rem;
  grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); }
figure + figure { margin-top: 1.75rem; padding-top: 1.5rem;
  border-top: 1px solid var(--line); }
figcaption { margin: .4rem 0 0; color: var(--soft); font-size: .9rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit !important; }
blockquote { margin: 0 0 1rem; padding: .9rem 1.1rem; background: var(--wash);
  border-radius: 10px; font-weight: 520; }
.plain { margin: 0; padding-left: 1.1rem; color: var(--soft); }
.plain li { margin: .3rem 0; }
.verdicts { margin-top: 1rem; }
.note + details { margin-top: 1rem; }
.note + pre { margin-top: .6rem; }
.note + .scroll, .warning + .scroll { margin-top: .9rem; }
pre { margin: 0; padding: .9rem 1.1rem; white-space: pre-wrap;
  overflow-wrap: anywhere;
  background: var(--code); border-radius: 10px; line-height: 1.5; }
code, pre { font: .84rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas,
  "DejaVu Sans Mono", monospace; }
details { border-top: 1px solid var(--line); padding: .75rem 0; }
details:first-of-type { border-top: 0; padding-top: 0; }
details:last-of-type { padding-bottom: 0; }
summary { cursor: pointer; font-weight: 560; }
summary::marker { color: var(--soft); }
details > :not(summary) { margin-top: .9rem; }
.settings td, .settings th { padding: .3rem .75rem; font-size: .88rem; }
.settings td:first-child { color: var(--soft); font-weight: 450; }
.settings td { text-align: left; white-space: normal; }
.settings th { text-align: left; }
footer { margin-top: 2rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 640px) {
  main { padding: 2rem 1rem 3rem; } h1 { font-size: 1.35rem; }
  section { padding: 1.15rem; }
  th { white-space: normal; }
  th, td { padding-left: .4rem; padding-right: .4rem; }
  td { font-size: .88rem; }
}
@media print { section { break-inside: avoid; } }
"""

// The page of one bundle, built of elements and text nodes: no word of a bundle is ever parsed.
const pageOf = document.getElementById('bundle');
const SIGNS = { pass: '✓ pass', fail: '✗ fail', flag: '⚑ flag', 'not observed': '? not observed' };
let redraw = [];

function redrawBundle() {
  for (const again of redraw) again();
}

function card(title, ...children) {
  return make('section', { class: 'card' }, make('h3', {}, title), ...children);
}

function pairs(list) {
  return make('dl', {}, ...list.flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)]));
}

function grid(titles, rows, name) {
  const head = make('tr', {}, ...titles.map((title) => make('th', { scope: 'col' }, title)));
  const body = rows.map((cells) => make('tr', {}, ...cells.map((cell) => make('td', {}, cell))));
  return make('div', { class: 'table' }, make('table', { class: name }, make('thead', {}, head), make('tbody', {}, ...body)));
}

function diffLines(text) {
  const kinds = { '+': 'add', '-': 'del', '@': 'hunk' };
  return text.replace(/\n$/, '').split('\n').map((line) => make('span', { class: kinds[line[0]] }, line || ' '));
}

function folded(title, text, open, lines) {
  const pre = make('pre', { tabindex: '0', role: 'region', 'aria-label': title }, ...(lines || [text]));
  return make('details', { open }, make('summary', {}, title), pre);
}

function figureOf(title, legend, content) {
  const place = make('div', {});
  const figure = make('figure', {}, make('figcaption', {}, title + ' ', make('span', {}, legend)), place);
  redraw.push(() => place.replaceChildren(content(Math.max(240, place.clientWidth || 600))));
  return figure;
}

function commandCard(command) {
  if (!command) return card('Repeat this run', make('p', {}, 'The command holds characters that no terminal should be given.'));
  const pre = make('pre', { class: 'command' }, command);
  const button = make('button', { type: 'button' }, 'Copy');
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(command);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren(pre);
    }
  });
  const head = make('div', { class: 'command-line' }, make('h3', {}, 'Repeat this run'), button);
  return make('section', { class: 'card' }, head, pre);
}

function memoryFigure(ranks) {
  if (!ranks.length) return make('figure', {}, make('figcaption', {}, 'Peak memory'), make('p', {}, 'not measured'));
  const gigabytes = (bytes) => `${(bytes / 1e9).toFixed(2)} GB`;
  const bars = ranks.map(([label, peak, room]) => ({
    label, value: peak, room, text: gigabytes(peak) + (room ? ` (${Math.round((100 * peak) / room)} %)` : ''),
  }));
  return figureOf('Peak memory', 'of what the device has', (width) => barChart(bars, width - 40, 'Peak memory of each rank'));
}

function findingRows(findings) {
  return findings.map((one) => {
    const more = [['Measured', one.measured], ['Honest', one.honest], ['Limit', one.limit], ['Observer', one.observer]].filter(([, value]) => value);
    const status = make('span', { class: `status is-${one.status.split(' ')[0]}` }, SIGNS[one.status] || one.status);
    const open = one.status === 'fail' || one.status === 'flag';
    return [make('b', {}, one.id), status, make('details', { open }, make('summary', {}, one.message), pairs([...more, ['Level', one.level]]))];
  });
}

function closedCard(parts) {
  if (!parts.length) return null;
  const rows = parts.map((part) => [
    make('span', {}, part.name, make('small', {}, make('code', {}, part.sha256))), part.version, part.size,
    make('span', {}, part.where, make('small', {}, part.licence)),
  ]);
  return card('Closed components', grid(['Name and sha256', 'Version', 'Size', 'Where to get it, licence'], rows));
}

function leadOf(row) {
  const figure = make('span', { class: 'big' }, row.tps, make('small', {}, ' tokens/s'));
  const verdict = make('span', { class: `verdict ${row.verdict.toLowerCase()}` }, row.verdict);
  return make('div', { class: 'lead' }, figure, row.interval ? make('span', {}, `95 % interval ${row.interval}`) : null, verdict, make('span', {}, row.openness), row.unranked ? make('span', { class: 'verdict debug' }, `not ranked: ${row.unranked}`) : null);
}

function diffCard(data) {
  const diffs = data.diffs.map((diff) => folded(diff.name, diff.text, data.diffs.length === 1 || diff.text.length < 2000, diffLines(diff.text)));
  return card('What the plugin changed', pairs(data.changes), ...diffs);
}

function showBundle(id, data, back) {
  const row = data.head;
  redraw = [];
  const optional = [
    data.notes.length ? card('Notes', make('ul', {}, ...data.notes.map((note) => make('li', {}, note)))) : null,
    data.search.length ? card('Batch-size search', grid(['Batch', 'Outcome', 'Tokens/s', 'Peak memory'], data.search)) : null,
    data.recipe.length ? card('Measured precision', grid(['Product', 'Direction', 'Measured', 'Share, or why'], data.recipe)) : null,
    closedCard(data.closed),
    data.helpers.length ?
      card('Declared helper threads', grid(['Thread', 'Reason', 'Of one core'], data.helpers)) : null,
    data.patches.length ? card('Declared patches', grid(['Target', 'Reason'], data.patches)) : null,
    data.repetitions.length ? card('Repeated by', grid(['Bundle', 'Difference', 'What it lacks'], data.repetitions)) : null,
  ];
  const trace = data.trace && data.trace.values.length
    ? figureOf('Step time', `seconds a ${data.trace.per}; dashed: median${data.trace.audited.length ? '; rings: audited' : ''}`, (width) => traceChart(data.trace, width))
    : make('figure', {}, make('figcaption', {}, 'Step time'), make('p', {}, 'not measured'));
  const findings = card('Audit', grid(['Rule', 'Status', 'Found'], findingRows(data.findings), 'findings'),
    make('details', {}, make('summary', {}, 'What this audit cannot see'), make('ul', {}, ...data.limits.map((limit) => make('li', {}, limit)))));
  pageOf.replaceChildren(
    make('p', {}, make('a', { href: back }, '← All bundles')),
    make('h1', { tabindex: '-1' }, row.title),
    leadOf(row),
    commandCard(data.command),
    make('div', { class: 'cards' }, trace, memoryFigure(data.memory)),
    make('div', { class: 'cards' }, card('Run', pairs(data.facts)), make('div', {}, card(data.software_title, pairs(data.software)), ...optional.slice(0, 2).filter(Boolean))),
    findings,
    diffCard(data),
    ...optional.slice(2).filter(Boolean),
    card('Log', folded('log.txt, its end', data.log || '(empty)', false)),
  );
  return `${row.title}`;
}

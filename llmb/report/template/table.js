// Filter and sort: rows are in the page already; of each group the first ones that fit are drawn.
const ROWS_AT_ONCE = Number(boardPage.dataset.atOnce);
const allLevels = document.getElementById('all-levels');
const sections = Array.from(document.querySelectorAll('section.group'));
const rowsOf = new Map(sections.map((section) => {
  const rest = section.querySelector('template');
  const rows = Array.from(section.querySelectorAll('tbody tr'));
  return [section, rest ? rows.concat(Array.from(rest.content.querySelectorAll('tr'))) : rows];
}));
// Read once: reading attributes again for each filter is most of its time.
const factsOf = new Map(Array.from(rowsOf.values()).flat().map((row) => [row, { ...row.dataset }]));
const LEAST = 'self-reported';
const hasBetter = new Map(sections.map((section) => [section, rowsOf.get(section).some((row) => factsOf.get(row).trust !== LEAST)]));
const fittingOf = new Map(), drawnOf = new Map();
const TEXTS = new Set(orders.filter((one) => 'text' in one.dataset).map((one) => one.value));
const COLLATOR = new Intl.Collator('en', { numeric: true });

// The box that chooses a row for a comparison; made when the row is first drawn.
const boxes = new Map();
function boxOf(row) {
  if (!boxes.has(row)) {
    const box = make('input', { type: 'checkbox', 'aria-label': `Choose ${row.dataset.system} for a comparison`, value: row.dataset.id });
    boxes.set(row, box);
    row.cells[0].prepend(make('label', { class: 'choose' }, box));
  }
  return boxes.get(row);
}

function drawChosen() {
  const bar = document.getElementById('chosen'), link = bar.querySelector('a');
  bar.hidden = chosen.size === 0 || boardPage.hidden;
  bar.firstElementChild.textContent = chosen.size === 1 ? '1 row chosen, choose another' : `${chosen.size} rows chosen${chosen.size === MOST_CHOSEN ? ', the most' : ''}`;
  link.hidden = chosen.size < 2;
  link.href = `#compare=${Array.from(chosen).join(',')}`;
  for (const [row, box] of boxes) box.checked = chosen.has(row.dataset.id);
}

function choose(id, isChosen) {
  if (!isChosen) chosen.delete(id);
  else if (chosen.size < MOST_CHOSEN) chosen.add(id);
  drawChosen();
  remember();
}

function words(data) {
  return [data.system, data.submitter, data.device, data.plugin, data.id].join(' ').toLowerCase();
}
const searched = new Map(Array.from(factsOf, ([row, data]) => [row, words(data)]));

function drawRows(section, most) {
  const fitting = fittingOf.get(section), more = section.querySelector('button.more');
  drawnOf.set(section, most);
  const drawn = fitting.slice(0, most);
  for (const row of drawn) boxOf(row).checked = chosen.has(row.dataset.id);
  section.querySelector('tbody').replaceChildren(...drawn);
  more.hidden = fitting.length <= most;
  more.textContent = `Show ${Math.min(ROWS_AT_ONCE, fitting.length - most)} more of ${fitting.length - most}`;
}

function applyFilters() {
  const wanted = Object.fromEntries(new FormData(form));
  const sought = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
  const is = (name, value) => !wanted[name] || wanted[name] === value;
  let shown = 0, beneath = 0;
  for (const [section, rows] of rowsOf) {
    const group = section.dataset;
    const here = is('workload', group.workload) && is('mode', group.mode) && is('precision', group.precision);
    const better = wanted.trust === 'better';
    const fits = (row) => {
      const data = factsOf.get(row);
      if (!(is('plugin', data.plugin) && is('verdict', data.name) && (better || is('trust', data.trust))
        && is('openness', data.openness) && is('lowest', data.lowest) && is('largest', data.largest) && is('devices', data.devices)
        && sought.every((word) => searched.get(row).includes(word)))) return false;
      if (!better || !hasBetter.get(section) || data.trust !== LEAST) return true;
      beneath += 1;
      return false;
    };
    const fitting = here ? rows.filter(fits) : [];
    fittingOf.set(section, fitting);
    section.hidden = fitting.length === 0;
    drawRows(section, ROWS_AT_ONCE);
    shown += fitting.length;
  }
  document.getElementById('nothing').hidden = shown > 0 || searched.size === 0;
  allLevels.hidden = beneath === 0;
  allLevels.textContent = `Show ${beneath} more that nobody else has computed again (self-reported)`;
  const by = form.elements.sort.selectedOptions[0].textContent.toLowerCase();
  document.getElementById('count').textContent = `${shown} of ${searched.size} ranked bundles, by ${by}`
    + (order.key === 'rank' && !order.descending ? '' : order.descending ? ', descending' : ', ascending')
    + (beneath ? `; ${beneath} self-reported hidden` : '');
  drawCharts();
}

function sorted(rows) {
  const isText = TEXTS.has(order.key), sign = order.descending ? -1 : 1;
  const keyed = rows.map((row) => {
    const data = factsOf.get(row), key = data[order.key];
    return { row, rank: Number(data.rank), missing: key === '', key: isText ? key : Number(key) };
  });
  keyed.sort((a, b) => a.missing - b.missing  // what was not measured is last either way
    || sign * (isText ? COLLATOR.compare(a.key, b.key) : a.key - b.key) || a.rank - b.rank);
  return keyed.map(({ row }) => row);
}

function applyOrder() {
  for (const [section, rows] of rowsOf) {
    rowsOf.set(section, sorted(rows));
    for (const title of section.querySelectorAll('thead th')) {
      if (title.dataset.key === order.key) title.setAttribute('aria-sort', order.descending ? 'descending' : 'ascending');
      else title.removeAttribute('aria-sort');
    }
  }
  form.elements.sort.value = order.key;
}

function sortBy(key, descending) {
  order.key = key;
  order.descending = descending;
  applyOrder();
  applyFilters();
  remember();
}

function startTable() {
  for (const title of document.querySelectorAll('section.group thead th')) {
    const button = document.createElement('button');
    button.type = 'button';
    button.append(...title.childNodes);
    title.append(button);
    const key = title.dataset.key;
    button.addEventListener('click', () => sortBy(key, order.key === key ? !order.descending : !LOW_FIRST.has(key)));
  }
  for (const section of sections) {
    section.querySelector('button.more').addEventListener('click', () => drawRows(section, drawnOf.get(section) + ROWS_AT_ONCE));
  }
  allLevels.addEventListener('click', () => { form.elements.trust.value = ''; applyFilters(); remember(); });
  form.elements.sort.addEventListener('change', (event) => sortBy(event.target.value, !LOW_FIRST.has(event.target.value)));
  form.addEventListener('input', (event) => {
    if (event.target.name === 'sort') return;
    applyFilters();
    remember(event.target.name === 'search');
  });
  form.addEventListener('submit', (event) => event.preventDefault());
  form.addEventListener('reset', () => setTimeout(() => sortBy('rank', false)));
  boardPage.addEventListener('change', (event) => { if (event.target.closest('.choose')) choose(event.target.value, event.target.checked); });
  document.querySelector('#chosen button').addEventListener('click', () => { chosen.clear(); drawChosen(); remember(); });
  document.querySelectorAll('#not-ranked tbody tr').forEach(boxOf);
  form.hidden = false;
  document.getElementById('tools').hidden = false;
}

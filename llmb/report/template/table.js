// Filter and sort: rows are in the page already; of each group the first ones that fit are drawn.
const ROWS_AT_ONCE = Number(document.getElementById('board').dataset.atOnce);
const form = document.getElementById('filters');
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
const orders = Array.from(form.elements.sort.options);
const TEXTS = new Set(orders.filter((one) => 'text' in one.dataset).map((one) => one.value));
const LOW_FIRST = new Set(orders.filter((one) => 'lowFirst' in one.dataset).map((one) => one.value));
const COLLATOR = new Intl.Collator('en', { numeric: true });
const order = { key: 'rank', descending: false };

function words(data) {
  return [data.system, data.submitter, data.device, data.plugin, data.id].join(' ').toLowerCase();
}
const searched = new Map(Array.from(factsOf, ([row, data]) => [row, words(data)]));

function drawRows(section, most) {
  const fitting = fittingOf.get(section), more = section.querySelector('button.more');
  drawnOf.set(section, most);
  section.querySelector('tbody').replaceChildren(...fitting.slice(0, most));
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
  allLevels.addEventListener('click', () => { form.elements.trust.value = ''; applyFilters(); });
  form.elements.sort.addEventListener('change', (event) => sortBy(event.target.value, !LOW_FIRST.has(event.target.value)));
  form.addEventListener('input', (event) => { if (event.target.name !== 'sort') applyFilters(); });
  form.addEventListener('submit', (event) => event.preventDefault());
  form.addEventListener('reset', () => setTimeout(() => sortBy('rank', false)));
  form.hidden = false;
}

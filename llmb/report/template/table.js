// Filter and sort: rows are in the page already, they are only hidden and moved.
const form = document.getElementById('filters');
const sections = Array.from(document.querySelectorAll('section.group'));
const rowsOf = new Map(sections.map((section) => [section, Array.from(section.querySelectorAll('tbody tr'))]));
const TEXTS = new Set(['system', 'submitter', 'device', 'measured', 'date']);
const LOW_FIRST = new Set(['rank', 'verdict', ...TEXTS]);
const COLLATOR = new Intl.Collator('en', { numeric: true });
const order = { key: 'rank', descending: false };

function words(row) {
  const data = row.dataset;
  return [data.system, data.submitter, data.device, data.plugin, data.id].join(' ').toLowerCase();
}
const searched = new Map(Array.from(rowsOf.values()).flat().map((row) => [row, words(row)]));

function applyFilters() {
  const wanted = Object.fromEntries(new FormData(form));
  const sought = wanted.search.toLowerCase().split(/\s+/).filter(Boolean);
  const is = (name, value) => !wanted[name] || wanted[name] === value;
  let shown = 0;
  for (const [section, rows] of rowsOf) {
    const group = section.dataset;
    const here = is('workload', group.workload) && is('mode', group.mode) && is('precision', group.precision);
    let count = 0;
    for (const row of rows) {
      const data = row.dataset;
      const fits = here && is('plugin', data.plugin) && is('verdict', data.name) && is('trust', data.trust)
        && is('openness', data.openness) && is('lowest', data.lowest) && is('largest', data.largest) && is('devices', data.devices)
        && sought.every((word) => searched.get(row).includes(word));
      row.hidden = !fits;
      count += fits;
    }
    section.hidden = count === 0;
    shown += count;
  }
  document.getElementById('nothing').hidden = shown > 0 || searched.size === 0;
  const by = form.elements.sort.selectedOptions[0].textContent.toLowerCase();
  document.getElementById('count').textContent = `${shown} of ${searched.size} ranked bundles, by ${by}`
    + (order.key === 'rank' && !order.descending ? '' : order.descending ? ', descending' : ', ascending');
  drawCharts();
}

function sorted(rows) {
  const isText = TEXTS.has(order.key), sign = order.descending ? -1 : 1;
  const keyed = rows.map((row) => {
    const key = row.dataset[order.key];
    return { row, rank: Number(row.dataset.rank), missing: key === '', key: isText ? key : Number(key) };
  });
  keyed.sort((a, b) => a.missing - b.missing  // what was not measured is last either way
    || sign * (isText ? COLLATOR.compare(a.key, b.key) : a.key - b.key) || a.rank - b.rank);
  return keyed.map(({ row }) => row);
}

function applyOrder() {
  for (const [section, rows] of rowsOf) {
    section.querySelector('tbody').append(...sorted(rows));
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
  form.elements.sort.addEventListener('change', (event) => sortBy(event.target.value, !LOW_FIRST.has(event.target.value)));
  form.addEventListener('input', (event) => { if (event.target.name !== 'sort') applyFilters(); });
  form.addEventListener('submit', (event) => event.preventDefault());
  form.addEventListener('reset', () => setTimeout(() => sortBy('rank', false)));
  form.hidden = false;
}

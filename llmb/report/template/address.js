// The address holds what a reader chose: filters, order and rows. Nothing of an address is parsed as
// markup, and a value that the page does not offer is ignored and told.
const boardPage = document.getElementById('board');
const form = document.getElementById('filters');
const LONGEST_SEARCH = 200;
const MOST_CHOSEN = 8;
const fields = Array.from(form.elements).filter((field) => field.name && field.name !== 'sort');
const orders = Array.from(form.elements.sort.options);
const LOW_FIRST = new Set(orders.filter((one) => 'lowFirst' in one.dataset).map((one) => one.value));
const order = { key: 'rank', descending: false };
const chosen = new Set();

function usual(field) {
  return field.options ? (Array.from(field.options).find((one) => one.defaultSelected) || field.options[0]).value : '';
}

function offers(field, value) {
  return field.options ? Array.from(field.options).some((one) => one.value === value) : value.length <= LONGEST_SEARCH;
}

function idsOf(text) {
  const ids = (text || '').split(',').filter((id) => /^[0-9a-f]{16}$/.test(id) && document.getElementById(`data-${id}`));
  return Array.from(new Set(ids)).slice(0, MOST_CHOSEN);
}

function boardAddress() {
  const said = new URLSearchParams();
  for (const field of fields) if (field.value !== usual(field)) said.set(field.name, field.value);
  if (order.key !== 'rank' || order.descending) said.set('sort', (order.descending ? '-' : '') + order.key);
  if (chosen.size) said.set('chosen', Array.from(chosen).join(','));
  return `#${String(said) || 'board'}`;
}

// Sets the form, the order and the chosen rows to what the address says; returns what it ignored.
function readAddress(text) {
  const said = new URLSearchParams(text), ignored = [];
  for (const field of fields) {
    const value = said.get(field.name), isUsable = value !== null && offers(field, value);
    if (value !== null && !isUsable) ignored.push(field.name);
    field.value = isUsable ? value : usual(field);
  }
  const sort = /^(-?)([a-z]+)$/.exec(said.get('sort') || '');
  const isKnown = sort && orders.some((one) => one.value === sort[2]);
  if (said.has('sort') && !isKnown) ignored.push('sort');
  order.key = isKnown ? sort[2] : 'rank';
  order.descending = Boolean(isKnown && sort[1]);
  const ids = idsOf(said.get('chosen'));
  if (said.has('chosen') && ids.join() !== said.get('chosen')) ignored.push('chosen');
  chosen.clear();
  for (const id of ids) chosen.add(id);
  const names = new Set([...fields.map((field) => field.name), 'sort', 'chosen']);
  if (Array.from(said.keys()).some((name) => !names.has(name))) ignored.push('further words');
  return ignored;
}

function tellIgnored(names) {
  const note = document.getElementById('ignored');
  note.hidden = names.length === 0;
  note.textContent = names.length ? `Ignored in the address, because this page does not have it: ${names.join(', ')}.` : '';
}

// A search is one entry of the history, however many letters were typed.
let searching = 0;
function remember(isTyping) {
  clearTimeout(searching);
  const write = () => {
    tellIgnored([]);
    const to = boardAddress();
    if (to !== (location.hash || '#board')) history.pushState(null, '', to);
  };
  if (isTyping) searching = setTimeout(write, 400);
  else write();
}

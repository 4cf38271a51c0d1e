// Which page is shown is in the address: #b-<id> is a bundle, #compare=<id>,<id> a comparison,
// #row-<id> a row of the ranking, #<id of a part> the part, anything else the state of the ranking.
const plainTitle = document.title;
let left = { scroll: 0, id: '', address: '#board' };

function showBoard() {
  const returning = !pageOf.hidden;
  pageOf.hidden = true;
  pageOf.replaceChildren();
  redraw = [];
  boardPage.hidden = false;
  document.title = plainTitle;
  return returning;
}

function showState(text) {
  const returning = showBoard();
  tellIgnored(readAddress(text));
  applyOrder();
  applyFilters();
  drawChosen();
  if (!returning) return;
  scrollTo(0, left.scroll);
  const link = boardPage.querySelector(`a[href="#b-${left.id}"]`);
  if (link) link.focus({ preventScroll: true });
}

// A row by the first 16 digits of its bundle's digest, or more of them.
function showRow(id) {
  showState('');
  const ranked = Array.from(rowsOf).find(([, rows]) => rows.some((row) => row.dataset.id === id));
  if (ranked) {
    const isRow = (row) => row.dataset.id === id;
    if (!fittingOf.get(ranked[0]).some(isRow)) {
      form.elements.trust.value = '';
      applyFilters();
    }
    drawRows(ranked[0], Math.max(ROWS_AT_ONCE, fittingOf.get(ranked[0]).findIndex(isRow) + 1));
  }
  const row = document.getElementById(`row-${id}`);
  if (!row) return tellIgnored(['that row']);
  row.classList.add('is-sought');
  row.tabIndex = -1;
  row.scrollIntoView({ block: 'center' });
  row.focus({ preventScroll: true });
}

function leaveBoard(id) {
  if (!boardPage.hidden) left = { scroll: scrollY, id, address: boardAddress() };
  boardPage.hidden = true;
  pageOf.hidden = false;
}

function showPage(title) {
  document.title = `${title} · ${plainTitle}`;
  drawChosen();
  redrawBundle();
  scrollTo(0, 0);
  pageOf.querySelector('h1').focus({ preventScroll: true });
}

// A text that several bundles have is in the page once, and its number stands for it.
let sharedTexts = null;
function whole(item) {
  if (typeof item === 'string') {
    if (!item.startsWith('\ue000')) return item;
    sharedTexts = sharedTexts || JSON.parse(document.getElementById('shared').textContent);
    return sharedTexts[Number(item.slice(1))];
  }
  if (Array.isArray(item)) return item.map(whole);
  return item && typeof item === 'object' ? Object.fromEntries(Object.entries(item).map(([key, part]) => [key, whole(part)])) : item;
}

function route() {
  const address = location.hash;
  document.querySelectorAll('.is-sought').forEach((row) => row.classList.remove('is-sought'));
  const id = /^#b-([0-9a-f]{16})$/.exec(address)?.[1];
  const data = id && document.getElementById(`data-${id}`);
  if (data) {
    leaveBoard(id);
    return showPage(showBundle(id, whole(JSON.parse(data.textContent)), left.address));
  }
  const compared = address.startsWith('#compare=') ? idsOf(address.slice('#compare='.length)) : [];
  if (compared.length > 1) {
    leaveBoard('');
    return showPage(showComparison(compared, left.address));
  }
  const sought = /^#row-([0-9a-f]{16})[0-9a-f]{0,48}$/.exec(address)?.[1];
  if (sought) return showRow(sought);
  const part = /^#([a-z]+(?:-[a-zA-Z0-9]+)*)$/.exec(address)?.[1];
  const place = part && part !== 'board' && boardPage.querySelector(`#${part}`);
  if (place) {
    if (showBoard()) applyFilters();
    drawChosen();
    place.classList.add('is-sought');
    return place.scrollIntoView();
  }
  return showState(address === '#board' ? '' : address.slice(1));
}

addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !pageOf.hidden) location.hash = left.address;
});
// Entries of the history differ in the fragment: going back is a change of it, too.
addEventListener('hashchange', route);
startTable();
startCharts();
startDownloads();
route();

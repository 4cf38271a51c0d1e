// Which of the two pages is shown is in the address: #b-<id> is a bundle, anything else the ranking.
const boardPage = document.getElementById('board');
const plainTitle = document.title;
let left = { scroll: 0, id: '' };

function showBoard() {
  const returning = !pageOf.hidden;
  pageOf.hidden = true;
  pageOf.replaceChildren();
  redraw = [];
  boardPage.hidden = false;
  document.title = plainTitle;
  drawCharts();
  if (!returning) return;
  scrollTo(0, left.scroll);
  const link = boardPage.querySelector(`a[href="#b-${left.id}"]`);
  if (link) link.focus({ preventScroll: true });
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
  const id = /^#b-([0-9a-f]{16})$/.exec(location.hash)?.[1];
  const data = id && document.getElementById(`data-${id}`);
  if (!data) return showBoard();
  if (!boardPage.hidden) left = { scroll: scrollY, id };
  boardPage.hidden = true;
  pageOf.hidden = false;
  document.title = `${showBundle(id, whole(JSON.parse(data.textContent)))} · ${plainTitle}`;
  redrawBundle();
  scrollTo(0, 0);
  pageOf.querySelector('h1').focus({ preventScroll: true });
}

addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !pageOf.hidden) location.hash = '#board';
});
addEventListener('hashchange', route);
startTable();
startCharts();
applyFilters();
route();

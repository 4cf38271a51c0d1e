// A comparison of chosen rows by the rules of llmb.comparison: which rows may be compared is decided
// by their conditions, item by item, and a ratio has the interval of llmb.comparison.ratio.
let comparing = null;
function comparisons() {
  comparing = comparing || JSON.parse(document.getElementById('comparing').textContent);
  return comparing;
}

const WEIGHTS = ['refused', 'not comparable', 'noted'];

function bothWords(a, b) {
  if (typeof a === 'string' || typeof b === 'string') return [String(a), String(b)];
  const [first, second] = [new Map(a), new Map(b)];
  const names = Array.from(new Set([...first.keys(), ...second.keys()])).sort().filter((name) => first.get(name) !== second.get(name));
  const told = (table) => names.filter((name) => table.has(name)).map((name) => `${name}: ${table.get(name)}`).join(', ') || 'none';
  return [told(first), told(second)];
}

// The differences and remarks of two rows, gravest first: {item, base, other, weight, reason}.
function differencesOf(baseId, otherId) {
  const { items, values, remarks, rows, same_run: sameRun } = comparisons();
  const [base, other] = [rows[baseId], rows[otherId]], found = [], unlike = new Set();
  const pairs = items.map(([name], n) => {
    const pair = [values[n][base.conditions[n]], values[n][other.conditions[n]]];
    if (pair[0][0] === null || pair[0][0] !== pair[1][0]) unlike.add(name);
    return pair;
  });
  items.forEach(([name, weight, reason, within], n) => {
    const [[, a, isRemark], [, b]] = pairs[n];
    const isNoted = isRemark || (base.conditions[n] !== other.conditions[n] && name !== 'reference_digest');
    if (within.some((needed) => unlike.has(needed)) || !(unlike.has(name) || isNoted)) return;
    const [one, another] = bothWords(a, b);
    found.push({ item: name, base: one, other: another, weight: unlike.has(name) ? weight : 'noted', reason });
  });
  for (const [verdict, [weight, reason]] of Object.entries(remarks)) {
    let sides = [['base', base], ['other', other]].filter(([, row]) => row.verdict === verdict);
    if (verdict !== 'INVALID') sides = sides.slice(0, 1);
    for (const [side] of sides) found.push({ item: 'verdict', base: base.verdict, other: other.verdict, weight, reason: verdict === 'INVALID' ? `${side}: ${reason}` : reason });
  }
  if (base.run === other.run) found.push({ item: sameRun[0], base: base.run, other: other.run, weight: sameRun[1], reason: sameRun[2] });
  return found.map((one, n) => [one, n]).sort(([a, n], [b, m]) => WEIGHTS.indexOf(a.weight) - WEIGHTS.indexOf(b.weight) || n - m).map(([one]) => one);
}

function student(freedom) {
  const { student: table } = comparisons(), place = (table.length - 1) / freedom;
  const n = Math.min(table.length - 2, Math.floor(place));
  return Math.exp(table[n] + (place - n) * (table[n + 1] - table[n]));
}

// The ratio of a figure, other over base: {ratio, interval, outcome}; null: nothing to divide.
function ratioOf(baseId, otherId, name) {
  const { rows, widest } = comparisons();
  const [base, other] = [rows[baseId].figures[name], rows[otherId].figures[name]];
  if (!base || !other || base[3] !== other[3]) return null;
  const ratio = other[0] / base[0];
  if (base[1] === null || other[1] === null) return { ratio, interval: null, outcome: 'no interval' };
  const [a, b] = [base[1] / base[0], other[1] / other[0]], error = Math.hypot(a, b);
  if (error > widest) return { ratio, interval: null, outcome: 'no interval' };
  const parts = error === 0 ? 1 : (a / error) ** 4 / base[2] + (b / error) ** 4 / other[2];
  const half = student(1 / parts) * error;
  const interval = [ratio * Math.exp(-half), ratio * Math.exp(half)];
  const isShown = interval[0] > 1 || interval[1] < 1;
  return { ratio, interval, outcome: isShown ? (ratio > 1 ? 'better' : 'worse') : 'no difference shown' };
}

function ratioWords(found) {
  if (!found) return 'not measured in both';
  const times = (value) => value.toFixed(value < 10 ? 3 : 1);
  return times(found.ratio) + (found.interval ? ` (${times(found.interval[0])} to ${times(found.interval[1])})` : '');
}

function figureWords(name, figure) {
  if (!figure) return 'not measured';
  return name === 'mfu' || name === 'fraction_of_ceiling' ? `${(100 * figure[0]).toFixed(1)} %` : figureText(figure[0]);
}

// The ratios of tokens per second on one logarithmic axis, the base at 1.
function ratioChart(list, width) {
  const line = 26, names = Math.min(180, width * 0.36), ends = list.flatMap(({ found }) => [found.ratio, ...(found.interval || [])]);
  const logs = [0, ...ends.map(Math.log)], pad = 0.06 * (Math.max(...logs) - Math.min(...logs)) || 0.1;
  const low = Math.min(...logs) - pad, high = Math.max(...logs) + pad;
  const x = (value) => names + ((Math.log(value) - low) / (high - low)) * (width - names - 8);
  const svg = canvas(width, list.length * line + 28, 'Ratio of tokens per second to the base, with 95 % interval');
  svg.append(draw('path', { class: 'median', d: `M${x(1)} 0V${list.length * line + 6}` }));
  svg.append(draw('text', { class: 'soft', x: x(1), y: list.length * line + 20, 'text-anchor': 'middle' }, 'base: 1'));
  list.forEach(({ label, found, isApart }, n) => {
    const middle = n * line + 14, name = draw('text', { x: 0, y: middle + 4 }, shorten(label, names - 8));
    name.append(draw('title', {}, `${label}: ${ratioWords(found)}, ${isApart ? 'not comparable' : found.outcome}`));
    svg.append(name);
    if (found.interval) {
      const [a, b] = found.interval.map(x);
      svg.append(draw('path', { class: 'whisker', d: `M${a} ${middle - 4}v8M${a} ${middle}H${b}M${b} ${middle - 4}v8` }));
    }
    svg.append(draw('circle', { class: isApart ? 'marked' : 'dot', cx: x(found.ratio), cy: middle, r: 5 }));
  });
  return svg;
}

function outcomeOf(differences, found) {
  const gravest = differences[0]?.weight;
  if (gravest === 'refused') return 'refused';
  if (gravest === 'not comparable') return 'not comparable';
  return found ? found.outcome : 'not measured in both';
}

function whyList(differences, weight) {
  return differences.filter((one) => one.weight === weight).map((one) => make('li', {}, `${one.item}: ${one.base === one.other ? one.base : `${one.base} against ${one.other}`}${one.reason ? ` (${one.reason})` : ''}`));
}

// The digits come first: two rows of one system differ in them.
function nameOf(id) {
  const { head } = whole(JSON.parse(document.getElementById(`data-${id}`).textContent));
  return `${id.slice(0, 8)} ${head.title}`;
}

function comparedCard(id, baseId, ids, names) {
  const differences = differencesOf(baseId, id), found = ratioOf(baseId, id, 'tokens_per_second');
  const outcome = outcomeOf(differences, found), isRefused = outcome === 'refused';
  const { rows, titles } = comparisons();
  const known = titles.filter(([name]) => rows[baseId].figures[name] || rows[id].figures[name]);
  const lines = known.map(([name, title]) => [
    title, figureWords(name, rows[baseId].figures[name]), figureWords(name, rows[id].figures[name]), isRefused ? 'none: refused' : ratioWords(ratioOf(baseId, id, name)),
  ]);
  const grave = [...whyList(differences, 'refused'), ...whyList(differences, 'not comparable')], noted = whyList(differences, 'noted');
  const lead = {
    refused: 'These rows may not be compared: no ratio is given.',
    'not comparable': 'Not comparable: which is the better system is not shown.',
    'no difference shown': 'No difference in tokens a second is shown: the interval holds 1.',
    'no interval': 'Nothing is shown: a figure without an interval.',
  }[outcome] || (found ? `${Math.abs(100 * (found.ratio - 1)).toFixed(1)} % ${found.ratio > 1 ? 'more' : 'fewer'} tokens a second, by the interval.` : outcome);
  const asBase = make('a', { href: `#compare=${[id, ...ids.filter((one) => one !== id)].join(',')}` }, 'Make this row the base');
  const title = make('h2', {}, make('a', { href: `#b-${id}` }, names.get(id)));
  return make('section', { class: 'card compared' }, title,
    make('p', {}, make('span', { class: `outcome is-${outcome.replaceAll(' ', '-')}` }, outcome), ` ${lead}`),
    grave.length ? make('ul', { class: 'grave' }, ...grave) : null,
    grid(['Figure', 'Base', 'This row', 'Ratio (95 % interval)'], lines, 'ratios'),
    noted.length ? make('details', {}, make('summary', {}, `${noted.length} other differences`), make('ul', {}, ...noted)) : null,
    make('p', {}, asBase));
}

function showComparison(ids, back) {
  const [baseId, ...others] = ids, names = new Map(ids.map((id) => [id, nameOf(id)]));
  redraw = [];
  const drawn = others.map((id) => {
    const differences = differencesOf(baseId, id), found = ratioOf(baseId, id, 'tokens_per_second');
    return { label: names.get(id), found, outcome: outcomeOf(differences, found), isApart: differences[0]?.weight === 'not comparable' };
  }).filter(({ found, outcome }) => found && outcome !== 'refused');
  const figure = drawn.length ? figureOf('Tokens per second against the base', '95 % interval; a hollow dot is not comparable', (width) => ratioChart(drawn, width - 36)) : null;
  pageOf.replaceChildren(
    make('p', {}, make('a', { href: back }, '← All bundles')),
    make('h1', { tabindex: '-1' }, `Comparison of ${ids.length} rows`),
    make('p', { class: 'base-line' }, 'Base: ', make('a', { href: `#b-${baseId}` }, names.get(baseId))),
    make('p', { class: 'why' }, 'A ratio is a row over the base. Intervals come from the bundles\' own intervals; llmb compare BASE OTHER also tests the times of single steps, and asks for agreement.'),
    ...[figure].filter(Boolean),
    ...others.map((id) => comparedCard(id, baseId, ids, names)),
  );
  return `Comparison of ${ids.length} rows`;
}

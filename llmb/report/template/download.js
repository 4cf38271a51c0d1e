// What is shown, as a file: the rows that fit the filters, in the order of the page.
function shownIds() {
  return sections.flatMap((section) => (fittingOf.get(section) || []).map((row) => row.dataset.id));
}

function save(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make('a', { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

// As `llmb report --csv`: the lines were made, and their formulas made inert, by llmb.
function shownAsCsv() {
  const lines = JSON.parse(document.getElementById('lines').textContent);
  return lines.title + shownIds().map((id) => lines.rows[id][0]).join('');
}

// As `llmb report --json`, with the ranked rows alone; every character is ASCII.
function shownAsJson() {
  const lines = JSON.parse(document.getElementById('lines').textContent), groups = [];
  for (const section of sections) {
    const rows = (fittingOf.get(section) || []).map((row) => lines.rows[row.dataset.id].slice(1));
    const named = rows.map((values) => Object.fromEntries(lines.fields.map((name, n) => [name, values[n]])));
    if (named.length) groups.push({ workload: named[0].workload, mode: named[0].mode, precision: named[0].precision, rows: named });
  }
  const text = JSON.stringify({ schema: lines.schema, declared: lines.declared, groups }, null, 1);
  return `${text.replace(/[^\n -~]/g, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, '0')}`)}\n`;
}

function startDownloads() {
  document.getElementById('download-csv').addEventListener('click', () => save('leaderboard.csv', 'text/csv', shownAsCsv()));
  document.getElementById('download-json').addEventListener('click', () => save('leaderboard.json', 'application/json', shownAsJson()));
}

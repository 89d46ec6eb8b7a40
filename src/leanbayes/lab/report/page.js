"use strict";
// Sorting by a header: its first press puts the better end on top, the next one turns it round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const turned = now === "ascending" ? "descending" : "ascending";
      const order = now === "none" ? head.dataset.first : turned;
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value;
      const compare = (a, b) =>
        column === 0 ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === "" || b === "") return (a === "") - (b === ""); // what is missing stays at the end
        return sign * compare(a, b);
      });
      table.tBodies[0].append(...rows);
      for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    });
  });
}

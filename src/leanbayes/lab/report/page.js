"use strict";
// A press on the title of a column sorts by it, the better end first; a second press reverses the order.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const current = head.getAttribute("aria-sort");
      const reversed = current === "ascending" ? "descending" : "ascending";
      const order = current === "none" ? head.dataset.first : reversed;
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value;
      const compare = (a, b) =>
        column === 0 ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
      const rows = [...table.tBodies[0].rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (a === "" || b === "") return (a === "") - (b === ""); // rows without a value stay at the end
        return sign * compare(a, b);
      });
      table.tBodies[0].append(...rows);
      for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    });
  });
}

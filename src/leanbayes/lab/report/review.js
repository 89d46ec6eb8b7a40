"use strict";
// Shows one case at a time. Names and facts come from data, so they only ever become text.
const cases = JSON.parse(document.getElementById("cases").textContent);
const the = (id) => document.getElementById(id);
const make = (tag, properties = {}) => Object.assign(document.createElement(tag), properties);
const svg = "http://www.w3.org/2000/svg";
const hiddenOutlines = new Set(); // names of outlines that are switched off
let at = 0; // the place of the case in the present order
let slice = 0;

const order = () => (the("order") ? the("order").value : "");
const kind = () => document.querySelector("input[name=kind]:checked").value;

function sorted() {
  const key = order();
  const byName = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true });
  cases.sort(key === "" ? byName : (a, b) => b.doubts[key] - a.doubts[key] || byName(a, b));
}

function fillList() {
  const key = order();
  const most = Math.max(...cases.map((item) => item.doubts[key] ?? 0), 1e-12);
  the("list").replaceChildren(
    ...cases.map((item, index) => {
      const button = make("button", { type: "button" });
      button.append(make("span", { textContent: item.name }));
      if (key !== "") {
        const bar = make("i");
        bar.style.width = `${(100 * item.doubts[key]) / most}%`;
        button.append(make("small", { textContent: item.doubts[key].toPrecision(2) }), bar);
      }
      button.addEventListener("click", () => showCase(index));
      const line = make("li");
      line.append(button);
      return line;
    }),
  );
}

function showCase(index) {
  at = Math.min(Math.max(index, 0), cases.length - 1);
  const item = cases[at];
  slice = item.shown;
  the("name").textContent = item.name;
  the("place").textContent = `${at + 1} of ${cases.length}`;
  the("previous").disabled = at === 0;
  the("next").disabled = at === cases.length - 1;
  the("left").textContent = item.sides[0];
  the("right").textContent = item.sides[1];
  the("note").textContent = item.note;
  the("facts").replaceChildren(
    ...item.facts.flatMap(([label, text]) => [make("dt", { textContent: label }), make("dd", { textContent: text })]),
  );
  the("slices").hidden = item.slices === 1;
  the("slice").max = item.slices - 1;
  [...the("list").querySelectorAll("button")].forEach((button, place) => {
    if (place === at) {
      button.setAttribute("aria-current", "true");
      const list = the("list"); // scrolled by hand: scrollIntoView would move the whole page
      const [top, bottom] = [button.offsetTop - list.offsetTop, button.offsetTop - list.offsetTop + button.offsetHeight];
      if (top < list.scrollTop) list.scrollTop = top;
      else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight;
    } else button.removeAttribute("aria-current");
  });
  const outlines = the("outlines");
  outlines.setAttribute("viewBox", `0 0 ${item.width} ${item.height}`);
  outlines.replaceChildren(
    ...item.paths.map((path) => {
      const line = document.createElementNS(svg, "path");
      line.setAttribute("stroke", path.colour);
      if (path.line !== "solid") line.setAttribute("stroke-dasharray", path.line === "dashed" ? "6 4" : "0.1 4");
      return line;
    }),
  );
  fillLegend(item);
  fitStage();
  showSlice(slice);
}

function fillLegend(item) {
  const legend = the("legend");
  legend.replaceChildren(
    legend.querySelector("legend"),
    ...item.paths.map((path) => {
      const box = make("input", { type: "checkbox", checked: !hiddenOutlines.has(path.name) });
      box.addEventListener("change", () => {
        if (box.checked) hiddenOutlines.delete(path.name);
        else hiddenOutlines.add(path.name);
        showSlice(slice);
      });
      const swatch = make("span", { className: "swatch" });
      swatch.style.borderColor = path.colour;
      swatch.style.borderTopStyle = path.line;
      const label = make("label");
      label.append(box, swatch, make("span", { textContent: path.name }));
      return label;
    }),
  );
}

// The stage is as large as the frame and the window allow, with square millimetres.
function fitStage() {
  const item = cases[at];
  const ratio = item.width / (item.height * item.aspect);
  const width = Math.min(document.querySelector(".frame").clientWidth, Math.max(240, 0.78 * innerHeight) * ratio);
  the("stage").style.width = `${width}px`;
  the("stage").style.height = `${width / ratio}px`;
  for (const layer of [the("image"), the("map")]) layer.classList.toggle("coarse", width > 1.5 * item.width);
}

function place(layer, address, item) {
  const rows = Math.ceil(item.slices / item.columns);
  const [column, row] = [slice % item.columns, Math.floor(slice / item.columns)];
  const share = (index, count) => (count > 1 ? (100 * index) / (count - 1) : 0);
  layer.style.backgroundImage = `url("${address}")`;
  layer.style.backgroundSize = `${100 * item.columns}% ${100 * rows}%`;
  layer.style.backgroundPosition = `${share(column, item.columns)}% ${share(row, rows)}%`;
}

function showSlice(index) {
  const item = cases[at];
  slice = Math.min(Math.max(index, 0), item.slices - 1);
  the("slice").value = slice;
  the("number").textContent = `${slice * item.step + 1} of ${(item.slices - 1) * item.step + 1}`;
  place(the("image"), item.image, item);
  const shown = kind();
  the("map").hidden = shown === "none";
  the("ramp").hidden = shown === "none";
  if (shown !== "none") {

    place(the("map"), item[shown], item);
    for (const end of the("ramp").querySelectorAll("b")) end.hidden = end.dataset.kind !== shown;
  }
  the("map").style.opacity = the("opacity").value / 100;
  the("strength").textContent = `${the("opacity").value} %`;
  item.paths.forEach((path, number) => {
    the("outlines").children[number].setAttribute("d", hiddenOutlines.has(path.name) ? "" : path.slices[slice]);
  });
  the("stage").setAttribute("aria-label", `${item.name}, slice ${the("number").textContent}`);
}

function choose(value) {
  document.querySelector(`input[name=kind][value=${value}]`).checked = true;
  showSlice(slice);
}

function turnOutlines() {
  const names = cases[at].paths.map((path) => path.name);
  const allOff = names.every((name) => hiddenOutlines.has(name));
  for (const name of names) {
    if (allOff) hiddenOutlines.delete(name);
    else hiddenOutlines.add(name);
  }
  fillLegend(cases[at]);
  showSlice(slice);
}

function turnOpacity(step) {
  the("opacity").value = Number(the("opacity").value) + step;
  showSlice(slice);
}

const next = { total: "epistemic", epistemic: "none", none: "total" };
const keys = {
  ArrowRight: () => showCase(at + 1),
  ArrowLeft: () => showCase(at - 1),
  ArrowUp: () => showSlice(slice + 1),
  ArrowDown: () => showSlice(slice - 1),
  m: () => choose(next[kind()]),
  o: turnOutlines,
  "+": () => turnOpacity(10),
  "=": () => turnOpacity(10),
  "-": () => turnOpacity(-10),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // Sliders, radio buttons and lists have arrow keys of their own.
  if (event.key.startsWith("Arrow") && event.target.matches("input, select")) return;
  const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
});
for (const input of document.querySelectorAll("input[type=range], input[name=kind]")) {
  // After a touch or a click the arrow keys move through cases and slices again.
  input.addEventListener("pointerup", () => setTimeout(() => input.blur()));
}
the("slice").addEventListener("input", () => showSlice(Number(the("slice").value)));
the("opacity").addEventListener("input", () => showSlice(slice));
for (const input of document.querySelectorAll("input[name=kind]")) input.addEventListener("change", () => showSlice(slice));
the("previous").addEventListener("click", () => showCase(at - 1));
the("next").addEventListener("click", () => showCase(at + 1));
if (the("order")) {
  the("order").addEventListener("change", () => {
    const item = cases[at];
    sorted();
    fillList();
    showCase(cases.indexOf(item));
    the("order").blur();
  });
}
addEventListener("resize", fitStage);
sorted();
fillList();
showCase(0);

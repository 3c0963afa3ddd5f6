// Without this script the page shows all cards and rows, in sections that open by hand.
const box = document.getElementById("differs");
document.querySelector(".filter").hidden = false;
box.addEventListener("change", () => {
  for (const card of document.querySelectorAll(".finding")) card.hidden = box.checked && !card.dataset.differs;
  for (const part of document.querySelectorAll("details.shown")) {
    const rows = [...part.querySelectorAll("tbody tr")];
    for (const row of rows) row.hidden = box.checked && !row.dataset.differs;
    part.open = box.checked && rows.some((row) => !row.hidden);
  }
});

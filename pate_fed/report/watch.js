// Puts what the server tells in its places. Nothing is loaded from elsewhere, and nothing is sent.
"use strict";
const line = document.getElementById("line");
const news = new EventSource("events");

function place(id, html) {
  const part = document.getElementById(id);
  const open = Array.from(part.querySelectorAll("details"), (each) => each.open);
  part.innerHTML = html; // escaped by the server; the page's policy runs no script in it
  part.querySelectorAll("details").forEach((each, number) => { each.open = open[number] === true; });
}

news.onopen = () => { line.hidden = true; };
news.onerror = () => { line.hidden = false; };
news.onmessage = (message) => {
  for (const [id, html] of Object.entries(JSON.parse(message.data))) place(id, html);
};
news.addEventListener("over", () => { news.close(); line.hidden = true; });

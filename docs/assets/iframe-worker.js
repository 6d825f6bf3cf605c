/* The search runs in a worker, and a browser starts none for a page from the disk: there a hidden frame does its work. */
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.onmessage = null;
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.appendChild(this.frame);
    this.ready = new Promise((done) => { this.frame.onload = done; });
    window.addEventListener("message", (event) => {
      if (event.source !== this.frame.contentWindow) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
    const page = this.frame.contentDocument;
    page.open();
    page.write(`<!doctype html><html><body><script>
      window.postMessage = (data) => parent.dispatchEvent(new MessageEvent("message", { data, source: window }));
      window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
        const script = document.createElement("script");
        script.src = url;
        script.onload = done;
        document.body.appendChild(script);
      })), Promise.resolve());
    <\/script><script src="${new URL(url, location)}"><\/script></body></html>`);
    page.close();
  }
  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
  }
  terminate() { this.frame.remove(); }
}
if (location.protocol === "file:") window.Worker = FrameWorker;

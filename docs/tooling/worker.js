// Browsers start no workers for files: here a worker's script runs in a hidden frame and talks to the page by messages.
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = this.frame = document.body.appendChild(document.createElement("iframe"));
    frame.hidden = true;
    addEventListener("message", event => {
      if (event.source !== frame.contentWindow) return;
      const message = new MessageEvent("message", {data: event.data});
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    });
    const script = `function postMessage(data) { parent.postMessage(data, "*") }
      function importScripts(...urls) { return Promise.all(urls.map(url => new Promise(done => {
        const one = document.createElement("script"); one.src = url; one.onload = done;
        document.body.appendChild(one) }))) }`;
    frame.contentDocument.write(`<body><script>${script}<\/script><script src="${new URL(url, location)}"><\/script></body>`);
    frame.contentDocument.close();
    this.ready = new Promise(done => frame.contentWindow.addEventListener("load", done));
  }
  postMessage(data) {
    this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
  }
  terminate() { this.frame.remove() }
}

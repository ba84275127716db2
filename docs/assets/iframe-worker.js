// Search on pages opened from disk. Browsers refuse web workers for file: addresses, so the worker's script runs in a
// hidden frame instead. Pages from a server keep the browser's own Worker.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.documentElement.appendChild(frame)
      this.scope = frame.contentWindow // about:blank: of the same origin as this page
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.scope.importScripts = (...addresses) => Promise.all(addresses.map(address => this.load(address)))
      this.loaded = this.load(address)
    }

    load(address) {
      return new Promise((resolve, reject) => {
        const script = this.scope.document.createElement("script")
        script.src = String(address)
        script.onload = resolve
        script.onerror = reject
        this.scope.document.head.appendChild(script)
      })
    }

    postMessage(data) {
      this.loaded.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.scope.frameElement.remove()
    }
  }

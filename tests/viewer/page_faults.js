// What axe-core checks first: names of controls, ids, contrast of text. Returns what is wrong, as texts.
() => {
  const faults = []
  for (const control of document.querySelectorAll('button, a, input, select, [role=tab], canvas')) {
    if (!control.checkVisibility()) continue
    const name = control.innerText?.trim() || control.ariaLabel || control.labels?.[0]?.innerText?.trim()
    if (!name || (name.length < 2 && !control.ariaLabel && !/\w/.test(name))) faults.push('no name: ' + control.outerHTML.slice(0, 120))
  }
  for (const id of document.querySelectorAll('[id]')) if (document.querySelectorAll('#' + id.id).length > 1) faults.push('id twice: ' + id.id)
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true })
  const light = (layers) => {
    canvas.clearRect(0, 0, 1, 1)
    for (const colour of layers) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1) }
    const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3)
    const [r, g, b] = parts.map((value) => value / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const element = text.parentElement
    if (!text.data.trim() || !element.checkVisibility() || element.closest('.unseen, script, noscript')) continue
    const papers = []
    for (let at = element; at; at = at.parentElement) papers.unshift(getComputedStyle(at).backgroundColor)
    const [ink, paper] = [light([...papers, getComputedStyle(element).color]), light(papers)]
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)
    if (contrast < 4.5) faults.push(contrast.toFixed(2) + ': ' + element.className + ': ' + text.data.trim().slice(0, 60))
  }
  return [...new Set(faults)]
}

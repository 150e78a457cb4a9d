/** How many columns of the tokens' font an element has room for. */

import { useLayoutEffect, useState } from 'preact/hooks'

const PROBE = '0'.repeat(100)
/** Room for glyphs that are a little wider than their cells. */
const RESERVE = 3

export function useColumns(element: () => HTMLElement | null): number {
  const [columns, setColumns] = useState(0)
  useLayoutEffect(() => {
    const found = element()
    if (!found) return
    const measure = (): void => {
      const probe = document.createElement('span')
      probe.className = 'probe'
      probe.textContent = PROBE
      found.append(probe)
      const cell = probe.getBoundingClientRect().width / PROBE.length
      probe.remove()
      if (cell > 0) setColumns(Math.max(16, Math.floor(found.clientWidth / cell) - RESERVE))
    }
    measure()
    const resized = new ResizeObserver(measure)
    resized.observe(found)
    return () => resized.disconnect()
  }, [])
  return columns
}

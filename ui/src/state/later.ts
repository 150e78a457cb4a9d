/** Work that is put off until the reader sees what comes first. */

import { useEffect, useState } from 'preact/hooks'

/** Works when what is in sight has been painted; returns what calls it off. */
export function afterFrame(work: () => void): () => void {
  let timer = 0
  const frame = requestAnimationFrame(() => {
    timer = window.setTimeout(work)
  })
  return () => {
    cancelAnimationFrame(frame)
    clearTimeout(timer)
  }
}

/** The first `first` of them, and all once those are painted. */
export function useLater<T>(all: T[], first: number): T[] {
  const [isWhole, setWhole] = useState(false)
  useEffect(() => afterFrame(() => setWhole(true)), [])
  return isWhole || all.length <= first ? all : all.slice(0, first)
}

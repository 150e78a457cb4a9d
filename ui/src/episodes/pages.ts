/** Rows of a long answer, asked for a page at a time as they come into the window. */

import { useCallback, useLayoutEffect, useReducer, useRef } from 'preact/hooks'

import type { EpisodePage, EpisodeRow } from '../data/types'

export const PAGE = 200

export interface Rows {
  total: number | null
  error: Error | null
  row: (index: number) => EpisodeRow | null
  /** What is in the window: asks for what is not there yet. */
  need: (first: number, end: number) => void
  /** Ask again for what is in the window; what is shown stays until the answer is there. */
  again: () => void
}

/** Pages that a window touches. */
export function pagesOf(first: number, end: number): number[] {
  const from = Math.floor(first / PAGE)
  const to = Math.floor(Math.max(first, end - 1) / PAGE)
  return Array.from({ length: to - from + 1 }, (_, index) => from + index)
}

export function useRows(key: string, ask: (offset: number, limit: number) => Promise<EpisodePage>): Rows {
  const [, redraw] = useReducer((count: number) => count + 1, 0)
  const state = useRef(emptyState(key))
  const window = useRef({ first: 0, end: PAGE })
  if (state.current.key !== key) {
    state.current = emptyState(key)
    window.current = { first: 0, end: PAGE }
  }

  const fetchPage = (page: number): void => {
    const asked = state.current
    asked.asked.add(page)
    ask(page * PAGE, PAGE).then(
      (answer) => {
        asked.total = answer.total
        asked.error = null
        asked.pages.set(page, answer.rows)
        redraw(0)
      },
      (error: Error) => {
        asked.asked.delete(page)
        asked.error = error
        redraw(0)
      },
    )
  }
  const need = useCallback(
    (first: number, end: number) => {
      window.current = { first, end }
      for (const page of pagesOf(first, end)) if (!state.current.asked.has(page)) fetchPage(page)
    },
    [key],
  )
  const again = useCallback(() => {
    const { first, end } = window.current
    const shown = pagesOf(first, end)
    state.current.asked = new Set()
    for (const page of [...state.current.pages.keys()]) if (!shown.includes(page)) state.current.pages.delete(page)
    shown.forEach(fetchPage)
  }, [key])
  useLayoutEffect(() => need(0, 1), [key])
  return {
    total: state.current.total,
    error: state.current.error,
    row: (index) => state.current.pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null,
    need,
    again,
  }
}

interface State {
  key: string
  total: number | null
  error: Error | null
  pages: Map<number, EpisodeRow[]>
  asked: Set<number>
}

function emptyState(key: string): State {
  return { key, total: null, error: null, pages: new Map(), asked: new Set() }
}

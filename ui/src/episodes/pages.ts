/** Rows of a long answer, asked for a page at a time as they come into the window. */

import { useLayoutEffect, useReducer, useRef } from 'preact/hooks'

import { OneAtATime } from '../state/one'

export const PAGE = 50

export interface Page<T> {
  total: number
  rows: T[]
}

export interface Rows<T> {
  total: number | null
  error: Error | null
  row: (index: number) => T | null
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

export function useRows<T>(key: string, ask: (offset: number, limit: number) => Promise<Page<T>>): Rows<T> {
  const [, redraw] = useReducer((count: number) => count + 1, 0)
  const state = useRef<Pages<T> | null>(null)
  if (state.current?.key !== key) state.current = new Pages(key, ask, () => redraw(0))
  const pages = state.current
  useLayoutEffect(() => pages.need(0, 1), [pages])
  return pages
}

/** The pages of one answer that were asked for. Answers are numbered: an older one never takes the place of a newer. */
export class Pages<T> implements Rows<T> {
  total: number | null = null
  error: Error | null = null
  private readonly pages = new Map<number, T[]>()
  /** The newest question for each page. */
  private readonly asked = new Map<number, number>()
  private questions = 0
  /** The newest question that was answered. */
  private answered = 0
  private window = { first: 0, end: PAGE }
  private readonly renewal = new OneAtATime(() => this.renew())

  constructor(
    readonly key: string,
    private readonly ask: (offset: number, limit: number) => Promise<Page<T>>,
    private readonly changed: () => void,
  ) {}

  row = (index: number): T | null => this.pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null

  need = (first: number, end: number): void => {
    this.window = { first, end }
    const lacking = pagesOf(first, end).filter((page) => !this.asked.has(page))
    void this.show(lacking)
  }

  /** Ask for pages of the window, and once they are there for what lies just beyond it. */
  private async show(pages: number[]): Promise<void> {
    await Promise.all(pages.map((page) => this.fetch(page)))
    if (this.total === null || this.error !== null) return
    const { first, end } = this.window
    const around = pagesOf(Math.max(0, first - PAGE), Math.min(end + PAGE, this.total))
    for (const page of around) if (!this.asked.has(page)) void this.fetch(page)
  }

  again = (): void => this.renewal.ask()

  private async renew(): Promise<void> {
    const shown = pagesOf(this.window.first, this.window.end)
    this.asked.clear()
    for (const page of [...this.pages.keys()]) if (!shown.includes(page)) this.pages.delete(page)
    await this.show(shown)
  }

  /** What fails beyond the window is no error of what is on show: it is asked for again when it is needed. */
  private async fetch(page: number): Promise<void> {
    const number = ++this.questions
    this.asked.set(page, number)
    const isNewest = (): boolean => this.asked.get(page) === number
    try {
      const { total, rows } = await this.ask(page * PAGE, PAGE)
      if (!isNewest()) return
      this.pages.set(page, rows)
      if (number < this.answered) return
      this.answered = number
      this.total = total
      this.error = null
    } catch (error) {
      if (!isNewest()) return
      this.asked.delete(page)
      if (pagesOf(this.window.first, this.window.end).includes(page)) this.error = error as Error
    } finally {
      this.changed()
    }
  }
}

/** A long list of which only what is seen is in the page. Items may measure themselves, or all have one height. */

import type { ComponentChildren, Ref } from 'preact'
import { useEffect, useImperativeHandle, useLayoutEffect, useMemo, useReducer, useRef } from 'preact/hooks'

import { Heights } from './virtual'

export interface ListHandle {
  scrollTo: (index: number, where?: 'start' | 'nearest') => void
}

interface Props {
  length: number
  /** The height of each item, exact unless `measured`. */
  height: (index: number) => number
  measured?: boolean
  render: (index: number) => ComponentChildren
  /** What makes one list another: its heights are forgotten, and it begins at its top. */
  identity: string
  label: string
  class?: string
  role?: 'list' | 'listbox' | 'feed' | 'document' | 'group'
  onTop?: (index: number) => void
  onWindow?: (first: number, end: number) => void
  handle?: Ref<ListHandle>
  /** Attributes of the scrolling element. */
  attributes?: { [name: string]: unknown }
}

const AROUND = 300

export function VirtualList(props: Props) {
  const { length, height, measured = false, identity, onTop, onWindow, handle } = props
  const scroller = useRef<HTMLDivElement>(null)
  const [, redraw] = useReducer((count: number) => count + 1, 0)
  const heights = useMemo(() => new Heights(length, height), [identity, length])
  const window = useRef({ first: 0, end: 0 })
  const observer = useRef<ResizeObserver | null>(null)
  /** Where `scrollTo` took the list: only what the reader scrolls is reported to `onTop`. */
  const ours = useRef(-1)

  const element = scroller.current
  const shown = heights.window(element?.scrollTop ?? 0, element?.clientHeight ?? 800, AROUND)
  window.current = shown

  useLayoutEffect(() => {
    if (scroller.current) scroller.current.scrollTop = 0
    redraw(0)
  }, [identity])

  useEffect(() => {
    const scrolling = scroller.current!
    /** A browser says it once a frame, before it lays the frame out: what comes into the window is in that same frame. */
    const onScroll = (): void => {
      const now = heights.window(scrolling.scrollTop, scrolling.clientHeight, AROUND)
      const { first, end } = window.current
      if (now.first !== first || now.end !== end) redraw(0)
      if (scrolling.scrollTop !== ours.current) onTop?.(heights.at(scrolling.scrollTop + 1))
    }
    scrolling.addEventListener('scroll', onScroll, { passive: true })
    const resized = new ResizeObserver(() => redraw(0))
    resized.observe(scrolling)
    return () => {
      scrolling.removeEventListener('scroll', onScroll)
      resized.disconnect()
    }
  }, [heights, onTop])

  useLayoutEffect(() => onWindow?.(shown.first, shown.end), [shown.first, shown.end, identity, length])

  useEffect(() => {
    if (!measured) return
    const note = new ResizeObserver((entries) => {
      const scrolling = scroller.current
      if (!scrolling) return
      const topItem = heights.at(scrolling.scrollTop)
      let moved = 0
      let changed = false
      for (const { target } of entries) {
        const index = Number((target as HTMLElement).dataset.index)
        if (!target.isConnected || !(index < heights.length)) continue
        const change = heights.measure(index, (target as HTMLElement).offsetHeight)
        changed ||= change !== 0
        if (index < topItem) moved += change
      }
      if (moved !== 0) {
        const wasOurs = scrolling.scrollTop === ours.current
        scrolling.scrollTop += moved
        if (wasOurs) ours.current = scrolling.scrollTop
      }
      if (changed) redraw(0)
    })
    observer.current = note
    for (const item of scroller.current!.querySelectorAll('[data-index]')) note.observe(item)
    return () => note.disconnect()
  }, [heights, measured])

  useImperativeHandle(
    handle ?? { current: null },
    () => ({
      scrollTo(index, where = 'start') {
        const scrolling = scroller.current
        if (!scrolling || index < 0) return
        const { scrollTop, clientHeight } = scrolling
        const begin = heights.offset(index)
        const end = begin + heights.height(index)
        if (where === 'start') scrolling.scrollTop = begin
        else if (begin < scrollTop) scrolling.scrollTop = begin
        else if (end > scrollTop + clientHeight) scrolling.scrollTop = end - clientHeight
        ours.current = scrolling.scrollTop
        redraw(0)
      },
    }),
    [heights],
  )

  const indexes = Array.from({ length: shown.end - shown.first }, (_, item) => shown.first + item)
  return (
    <div
      ref={scroller}
      class={`scroller ${props.class ?? ''}`}
      role={props.role ?? 'list'}
      aria-label={props.label}
      tabIndex={0}
      {...props.attributes}
    >
      <div class="scroller-whole" role="presentation" style={{ height: `${heights.total}px` }}>
        {indexes.map((index) => (
          <Item key={index} index={index} top={heights.offset(index)} observer={measured ? observer : null}>
            {props.render(index)}
          </Item>
        ))}
      </div>
    </div>
  )
}

interface ItemProps {
  index: number
  top: number
  observer: { current: ResizeObserver | null } | null
  children: ComponentChildren
}

/** Stands at its own place, so that what the browser drew of it stays good while others come and go. */
function Item({ index, top, observer, children }: ItemProps) {
  const element = useRef<HTMLDivElement>(null)
  useEffect(() => {
    const item = element.current!
    observer?.current?.observe(item)
    return () => observer?.current?.unobserve(item)
  }, [])
  return (
    <div ref={element} class="scroller-item" data-index={index} role="presentation" style={{ top: `${top}px` }}>
      {children}
    </div>
  )
}

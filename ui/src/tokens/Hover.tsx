/** What is known of the token under the pointer, beside it. */

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks'
import type { RefObject } from 'preact'

import type { Columns } from './columns'
import { FactList } from './TokenFacts'

const APART = 8

interface Under {
  index: number
  side: string
  box: DOMRect
}

interface Props {
  area: RefObject<HTMLElement | null>
  /** The columns of a token, by the `data-side` that stands above it ('' where there is only one). */
  columns: (side: string) => Columns | null
  /** A token that has a card of its own. */
  pinned?: number
}

export function Hover({ area, columns, pinned = -1 }: Props) {
  const [under, setUnder] = useState<Under | null>(null)
  const card = useRef<HTMLDivElement>(null)

  useEffect(() => {
    const element = area.current
    if (!element) return
    const over = (event: Event): void => {
      const token = (event.target as HTMLElement).closest<HTMLElement>('[data-token]')
      const side = token?.closest<HTMLElement>('[data-side]')?.dataset.side ?? ''
      setUnder(token ? { index: Number(token.dataset.token), side, box: token.getBoundingClientRect() } : null)
    }
    const away = (): void => setUnder(null)
    element.addEventListener('mouseover', over)
    element.addEventListener('mouseleave', away)
    element.addEventListener('scroll', away, { capture: true, passive: true })
    return () => {
      element.removeEventListener('mouseover', over)
      element.removeEventListener('mouseleave', away)
      element.removeEventListener('scroll', away, { capture: true })
    }
  }, [])

  useLayoutEffect(() => {
    const shown = card.current
    if (!shown || !under) return
    const { width, height } = shown.getBoundingClientRect()
    const { box } = under
    const fitsBelow = box.bottom + APART + height < innerHeight
    shown.style.left = `${Math.max(APART, Math.min(box.left, innerWidth - width - APART))}px`
    shown.style.top = `${Math.max(APART, fitsBelow ? box.bottom + APART : box.top - height - APART)}px`
  }, [under])

  const found = under && columns(under.side)
  if (!under || !found || under.index >= found.length || under.index === pinned) return null
  return (
    <div ref={card} class="hover-card" role="tooltip">
      <FactList facts={found.facts(under.index)} />
    </div>
  )
}

/** How episodes are spread over rewards and lengths, as bars that filter by what they stand for. */

import type { Bin } from '../data/types'
import { go, usePlace, type Place } from '../state/place'
import { integer, number } from '../text/format'
import { t } from '../text/translate'

interface Props {
  title: string
  unit?: string
  bins: Bin[]
  /** The filters that a bar sets. */
  from: 'min_reward' | 'min_tokens'
  to: 'max_reward' | 'max_tokens'
}

export function Histogram({ title, unit, bins, from, to }: Props) {
  const place = usePlace()
  if (bins.length < 2) return null
  const most = Math.max(...bins.map(([, , count]) => count))
  const first = bins[0]!
  const last = bins.at(-1)!
  return (
    <fieldset class="histogram">
      <legend>
        {title}
        {unit && <span class="faint"> {unit}</span>}
      </legend>
      <div class="bars">
        {bins.map(([low, high, count]) => {
          const isOn = place[from] === String(low) && place[to] === String(high)
          const range = low === high ? number(low) : t('interval_of', { low: number(low), high: number(high) })
          const toggle = (): void => go((isOn ? { [from]: '', [to]: '' } : { [from]: String(low), [to]: String(high) }) as Partial<Place>, { replace: true })
          return (
            <button key={low} type="button" aria-pressed={isOn} disabled={count === 0} title={`${range}: ${integer(count)}`} aria-label={`${title} ${range}: ${integer(count)}`} onClick={toggle}>
              <svg viewBox="0 0 10 32" preserveAspectRatio="none" aria-hidden="true">
                <rect x="0.5" width="9" y={32 - Math.max(1.5, (32 * count) / most)} height="32" />
              </svg>
            </button>
          )
        })}
      </div>
      <div class="bars-ends faint">
        <span>{number(first[0])}</span>
        <span>{number(last[1])}</span>
      </div>
    </fieldset>
  )
}

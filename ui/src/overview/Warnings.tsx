/** What a reader should look at before the numbers are trusted, with the way there. */

import type { RunWarning } from '../data/types'
import { go } from '../state/place'
import { number, rate } from '../text/format'
import { t } from '../text/translate'

export function Warnings({ warnings }: { warnings: RunWarning[] }) {
  return (
    <section class="overview-warnings">
      <h3>{t('warnings')}</h3>
      <ul>
        {warnings.map((warning) => (
          <li key={`${warning.metric} ${warning.value}`}>
            {textOf(warning)}{' '}
            <button class="link" onClick={() => go(wayTo(warning))}>
              {t(warning.kind === 'failed' ? 'warn_look_errors' : 'warn_look')}
            </button>
          </li>
        ))}
      </ul>
    </section>
  )
}

function textOf({ kind, metric, step, value, before }: RunWarning): string {
  if (value === null) return t('warn_nan', { metric, step: step ?? '' })
  const isPart = kind === 'dropped' || kind === 'failed'
  const shown = isPart ? rate(value) : number(value, 3)
  return t(`warn_${kind}`, { metric, step: step ?? '', value: shown, before: number(before, 3) })
}

function wayTo({ kind, metric }: RunWarning): Parameters<typeof go>[0] {
  return kind === 'failed' ? { view: 'episodes', status: 'error', id: '' } : { view: 'dashboard', metric }
}

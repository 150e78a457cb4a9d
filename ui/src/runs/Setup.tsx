/** What the run was started with. */

import type { Run } from '../data/types'
import { moment } from '../text/format'
import { t } from '../text/translate'

export function Setup({ run }: { run: Run }) {
  const { info } = run
  return (
    <section class="pane setup scroller" tabIndex={0} aria-label={t('setup')}>
      <dl class="summary">
        {(
          [
            ['model', info.model],
            ['backbone', info.backbone],
            ['started', moment(info.created_at)],
            ['agent', run.agents.join(', ') || null],
          ] as const
        ).map(([word, value]) => (
          <div key={word}>
            <dt>{t(word)}</dt>
            <dd>{value ?? '–'}</dd>
          </div>
        ))}
      </dl>
      {info.message && <p class="error-line">{info.message}</p>}
      <h3>{t('config')}</h3>
      <pre class="code">{run.config}</pre>
    </section>
  )
}

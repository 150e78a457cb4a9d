/** What the run was started with. */

import type { Run, RunInfo } from '../data/types'
import { differing, toldApart } from './columns'
import { moment } from '../text/format'
import { t } from '../text/translate'

export function Setup({ run, over }: { run: Run; over: RunInfo[] }) {
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
      {over.length > 1 && <Differences runs={over} />}
      <h3>{t('config')}</h3>
      <pre class="code">{run.config}</pre>
    </section>
  )
}

/** The settings in which the runs on show differ, a column a run. */
function Differences({ runs }: { runs: RunInfo[] }) {
  const keys = differing(runs)
  const told = toldApart(runs)
  return (
    <>
      <h3>{t('differing')}</h3>
      {keys.length === 0 ? (
        <p class="faint">{t('no_differing')}</p>
      ) : (
        <div class="table-scroller">
          <table class="run-table differences">
            <thead>
              <tr>
                <th scope="col" />
                {runs.map(({ run, experiment, name }) => (
                  <th key={run} scope="col">
                    {experiment} {name}
                    <div class="faint">{told.get(run)}</div>
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {keys.map((key) => (
                <tr key={key}>
                  <th scope="row">{key}</th>
                  {runs.map(({ run, settings }) => (
                    <td key={run}>{settings?.[key] ?? '–'}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  )
}
